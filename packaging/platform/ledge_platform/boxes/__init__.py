"""The boxes of a platform: inviting them, answering what they ask for, and what is known of each.

A box joins by a join file, which `box add` makes. It puts a request into a folder that it can write to and not read
(`inboxes.py`), `box answer` decides (`rules.py`), and the box fetches the answer. Nothing here listens on a port.

    dsse.py       signed documents, in both directions
    requests.py   one request, taken apart and proven to be of who has its key
    inboxes.py    the folders of requests, which hostile boxes fill
    store.py      what the platform knows: invitations, members, who waits, what was refused
    inviting.py   join files
    rules.py      which request gets a certificate
    answering.py  a run over all inboxes, which can be killed at any point
    questions.py  signed questions to a box, and its answers
    asking.py     `box ask`
    listing.py    the state of each box, and what needs a look
"""
