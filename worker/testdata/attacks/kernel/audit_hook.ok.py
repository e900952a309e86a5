import sys

armed = False
sys.audit("mine.event", 1)
