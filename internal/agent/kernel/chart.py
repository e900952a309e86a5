"""The data behind a figure of matplotlib, in the form of E2B's charts: line, scatter, bar, pie, box_and_whisker, superchart, unknown."""

import datetime
import math
import re
import sys

MAX_POINTS = 10_000  # points, bars, boxes, wedges and ticks of a figure; one with more has no chart
MAX_AXES = 32
MAX_TEXT = 1000  # characters of a label or title
UNIT = re.compile(r"\s\(([^()]*)\)|\[([^\[\]]*)\]")


class TooLarge(Exception):
    pass


def chart_of(figure):
    """Returns the chart of a figure as JSON's types; None if it is blank, too large, or cannot be read. It never raises."""
    try:
        axes = figure.get_axes()
        if len(axes) > MAX_AXES or not any(ax.has_data() for ax in axes):
            return None
        reader = Reader()
        if len(axes) == 1:
            return reader.chart(axes[0])
        title = figure.get_suptitle() if hasattr(figure, "get_suptitle") else ""
        return {"type": "superchart", "title": text(title), "elements": [reader.chart(ax) for ax in axes]}
    except Exception:  # the code may have put anything into the figure
        return None


class Reader:
    """Reads the axes of one figure."""

    def __init__(self):
        self.left = MAX_POINTS

    def spend(self, points):
        self.left -= points
        if self.left < 0:
            raise TooLarge

    def chart(self, ax):
        kind = kind_of(ax)
        chart = {"type": kind, "title": text(ax.get_title())}
        if kind == "unknown":
            return {**chart, "elements": []}
        if kind == "pie":
            return {**chart, "elements": self.pie(ax)}
        labels = {"x_label": text(ax.get_xlabel()), "y_label": text(ax.get_ylabel())}
        if kind in ("line", "scatter"):
            chart.update(labels, x_unit=unit(labels["x_label"]), y_unit=unit(labels["y_label"]))
            for name, axis, scale in (("x", ax.xaxis, ax.get_xscale()), ("y", ax.yaxis, ax.get_yscale())):
                chart.update(self.ticks(name, axis, scale))
            return {**chart, "elements": self.lines(ax) if kind == "line" else self.clouds(ax)}
        horizontal, elements = self.bars(ax) if kind == "bar" else self.boxes(ax)
        if horizontal:  # x is always the axis of the categories
            labels = {"x_label": labels["y_label"], "y_label": labels["x_label"]}
        chart.update(labels, x_unit=unit(labels["x_label"]), y_unit=unit(labels["y_label"]))
        return {**chart, "elements": elements}

    def ticks(self, name, axis, scale):
        places, names = axis.get_ticklocs(), axis.get_ticklabels()
        self.spend(len(places))
        dates = is_date(axis)
        if dates:
            from matplotlib.dates import num2date

            values = [num2date(place).isoformat() for place in places]
        else:
            values = [value(place) for place in places]
            if scale == "linear" and type(converter(axis)).__name__ == "StrCategoryConverter":
                scale = "categorical"
        return {
            f"{name}_ticks": values,
            f"{name}_tick_labels": [str(label.get_text())[:MAX_TEXT] for label in names],
            f"{name}_scale": "datetime" if dates else scale,
        }

    def points(self, xs, ys):
        self.spend(min(len(xs), len(ys)))
        return [[x, y] for x, y in zip(column(xs), column(ys))]

    def lines(self, ax):
        found = []
        for line in ax.get_lines():
            if is_rule(line):
                continue
            label = str(line.get_label())
            if label.startswith("_child"):
                label = f"Line {label[6:]}"
            found.append({"label": label[:MAX_TEXT], "points": self.points(line.get_xdata(), line.get_ydata())})
        return found

    def clouds(self, ax):
        found = []
        for cloud in ax.collections:
            places = cloud.get_offsets()
            self.spend(len(places))
            xs, ys = (self.places(axis, places[:, at]) for at, axis in ((0, ax.xaxis), (1, ax.yaxis)))
            found.append({"label": str(cloud.get_label())[:MAX_TEXT], "points": [[x, y] for x, y in zip(xs, ys)]})
        return found

    @staticmethod
    def places(axis, numbers):
        """Places on an axis as the code gave them: scatter plots keep only numbers."""
        if is_date(axis):
            from matplotlib.dates import num2date

            return [num2date(float(number)).isoformat() for number in numbers]
        return column(numbers)

    def pie(self, ax):
        self.spend(len(ax.patches))
        return [
            {
                "label": str(wedge.get_label())[:MAX_TEXT],
                "angle": abs(round(float(wedge.theta2) - float(wedge.theta1), 3)),
                "radius": float(wedge.r),
            }
            for wedge in ax.patches
        ]

    def bars(self, ax):
        found, horizontal = [], False
        for number, bars in enumerate(group for group in ax.containers if hasattr(group, "patches")):
            self.spend(len(bars.patches))
            group = str(bars.get_label())
            if group.startswith("_container"):
                group = f"Group {group[10:]}"
            horizontal = getattr(bars, "orientation", None) == "horizontal"
            names = labels_at(ax.yaxis if horizontal else ax.xaxis)
            for bar in bars.patches:
                low, size = (bar.get_y(), bar.get_height()) if horizontal else (bar.get_x(), bar.get_width())
                found.append({
                    "label": name_at(names, low + size / 2),
                    "group": group[:MAX_TEXT],
                    "value": value(bar.get_width() if horizontal else bar.get_height()),
                })
        return horizontal, found

    def boxes(self, ax):
        lines = [(list(map(float, line.get_xdata())), list(map(float, line.get_ydata()))) for line in self.short(ax.lines)]
        extents = [box.get_path().get_extents() for box in ax.patches]
        self.spend(len(extents))
        horizontal = not any(medians(lines, box.x0, box.x1, box.y0, box.y1) for box in extents)
        if horizontal:
            lines = [(ys, xs) for xs, ys in lines]
        names = labels_at(ax.yaxis if horizontal else ax.xaxis)
        found = []
        for box in extents:
            left, right, low, high = (box.y0, box.y1, box.x0, box.x1) if horizontal else (box.x0, box.x1, box.y0, box.y1)
            middle, ends, outliers = (left + right) / 2, [low, high], []
            for xs, ys in lines:
                if not xs or not all(near(x, middle) for x in xs):
                    continue
                if len(xs) == 2 and near(max(ys), low):
                    ends[0] = min(ys)
                elif len(xs) == 2 and near(min(ys), high):
                    ends[1] = max(ys)
                elif not any(low <= y <= high for y in ys):
                    outliers += ys
            median = medians(lines, left, right, low, high)
            found.append({
                "label": name_at(names, middle),
                "min": short(ends[0]),
                "first_quartile": short(low),
                "median": short(median[0]) if median else None,
                "third_quartile": short(high),
                "max": short(ends[1]),
                "outliers": [short(y) for y in outliers],
            })
        return horizontal, found

    def short(self, lines):
        for line in lines:
            self.spend(len(line.get_xdata()))
            yield line


def kind_of(ax):
    """The type of the chart that an axes shows."""
    from matplotlib.collections import PathCollection
    from matplotlib.patches import PathPatch, Rectangle, Wedge

    def all_are(kind, artists):
        return all(isinstance(artist, kind) for artist in artists)

    clouds, patches = ax.collections, ax.patches
    if ax.images or ax.tables or ax.artists:
        return "unknown"
    if not clouds and not patches:
        return "line"
    if not clouds and all_are(PathPatch, patches):
        return "box_and_whisker"
    if not all(is_rule(line) for line in ax.lines):
        return "unknown"
    if not patches and all_are(PathCollection, clouds):
        return "scatter"
    if not clouds and all_are(Wedge, patches):
        return "pie"
    if not clouds and all_are(Rectangle, patches):
        return "bar"
    return "unknown"


def is_rule(line):
    """Whether a line is a part of a grid or marks a value: two points, upright or level."""
    xs, ys = line.get_xdata(), line.get_ydata()
    return len(xs) == len(ys) == 2 and bool(xs[0] == xs[1] or ys[0] == ys[1])


def medians(lines, left, right, low, high):
    """The heights of level lines across a box."""
    return [
        ys[0]
        for xs, ys in lines
        if len(xs) == 2 and ys[0] == ys[1] and low <= ys[0] <= high and near(min(xs), left) and near(max(xs), right)
    ]


def near(a, b):
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


def short(number):
    """A number that was computed from others, without what rounding added."""
    return float(f"{number:.9g}")


def converter(axis):
    return axis.get_converter() if hasattr(axis, "get_converter") else axis.converter


def is_date(axis):
    kind = type(converter(axis))
    return "Date" in kind.__name__ or kind.__module__.startswith("pandas.")


def labels_at(axis):
    return [(float(place), str(label.get_text())[:MAX_TEXT]) for place, label in zip(axis.get_ticklocs(), axis.get_ticklabels())]


def name_at(labels, place):
    """The label of the tick at a place of an axis, or the number of the place."""
    return next((name for at, name in labels if near(at, place)), f"{place:.6g}")


def unit(label):
    """The unit that a label names in brackets."""
    found = UNIT.search(label or "")
    return (found.group(1) or found.group(2)) if found else None


def text(label):
    return str(label)[:MAX_TEXT] or None


def column(data):
    """Values of a plot in JSON's types."""
    numpy = sys.modules["numpy"]
    if type(data) is numpy.ndarray and data.ndim == 1 and data.dtype.kind in "fiu" and numpy.isfinite(data).all():
        return data.astype(float).tolist()
    return [value(datum) for datum in data]


def value(datum):
    """A value of a plot in JSON's types."""
    if isinstance(datum, str):
        return datum[:MAX_TEXT]
    if isinstance(datum, datetime.date):  # and its subclasses, of pandas too
        return datum.isoformat()
    numpy = sys.modules["numpy"]
    if datum is numpy.ma.masked or datum is None:
        return None
    if isinstance(datum, numpy.datetime64):
        return str(datum.astype("datetime64[s]"))
    number = float(datum)
    return number if math.isfinite(number) else None
