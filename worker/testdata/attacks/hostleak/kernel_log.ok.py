import logging

logging.getLogger("mine").warning("a log of one's own")
