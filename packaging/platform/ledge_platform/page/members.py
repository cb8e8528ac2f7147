"""Which boxes are expected, wait, are members or were forgotten, as `box list` has it."""
from ..boxes import listing
from ..boxes.questions import load
from ..boxes.store import Store
from ..errors import Failure


class Members:
    """The state of the `box` verbs at one time. Without a folder, nothing is known of any box."""

    def __init__(self, folder, now):
        self.rows, self.forgotten, self.error, self.folder = {}, set(), None, folder
        if folder is None:
            return
        try:
            state = Store(folder).load()
        except (Failure, OSError) as error:
            self.error = f"what `ledge-platform box` knows cannot be read: {error}"
            return
        for row in listing.rows(state, now):
            # Of a name that is expected again, the row that needs a person most is the last one.
            if not row.is_batch:
                self.rows[row.name] = row
        self.forgotten = set(state.forgotten) - set(self.rows)

    def names(self):
        return set(self.rows)

    def answer(self, name):
        """The last answer of a box to a question; None without one."""
        try:
            asked = name in self.rows and load(self.folder, name)
        except (Failure, OSError):
            return None
        return asked.answer if asked else None

    def of(self, name):
        row = self.rows.get(name)
        return row and {"state": row.state, "until": row.until, "since": row.since, "renewed": row.renewed}
