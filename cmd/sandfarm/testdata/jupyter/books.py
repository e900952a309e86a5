"""Notebooks for the tests, and what is in them."""

import nbformat


def notebook(*cells):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])


def types(cell):
    return [output["output_type"] for output in cell["outputs"]]
