"""The audit logs of the boxes: verification of each, and its content.

An implementation of its own, after the specifications and in Python, so that whoever distrusts the box need not believe
its code: C2SP tlog-tiles, tlog-checkpoint, signed-note and tlog-proof, over the Merkle tree of RFC 6962.
"""
