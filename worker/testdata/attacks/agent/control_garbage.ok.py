from IPython.display import HTML, display

display(HTML("<b>x</b>"))
