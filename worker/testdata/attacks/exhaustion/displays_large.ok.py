from IPython.display import display

display({"text/html": "<table>" + "<tr><td>1</td></tr>" * 1000 + "</table>"}, raw=True)
