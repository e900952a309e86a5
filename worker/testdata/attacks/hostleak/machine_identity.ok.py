import uuid

assert uuid.uuid4() != uuid.uuid4()
