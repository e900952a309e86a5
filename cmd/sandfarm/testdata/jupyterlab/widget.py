import ipywidgets
import matplotlib.pyplot as plt
from IPython.display import display

slider = ipywidgets.IntSlider(value=3, min=1, max=9, description="terms")
area = ipywidgets.Output()


def moved(change):
    with area:
        area.clear_output(wait=True)
        print("moved to", change["new"])
        plt.plot([n ** change["new"] for n in range(10)])
        plt.show()


slider.observe(moved, "value")
display(slider, area)
