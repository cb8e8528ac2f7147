"""Makes a Feast repository: an entity with 20 Float32 features, pushed by a source, in Feast's SQLite online store, filled.

usage: feast_repository.py FOLDER ENTITIES      (run by the Python of .ledge/peers/feast)"""
import random
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pandas as pd
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, PushSource, ValueType
from feast.types import Float32, Int64

FOLDER, ENTITIES = Path(sys.argv[1]), int(sys.argv[2])
NAMES = [f"f{at}" for at in range(20)]
BATCH = 2000

(FOLDER / "feature_store.yaml").write_text(
    "project: bench\nprovider: local\nregistry: registry.db\nonline_store: { type: sqlite, path: online.db }\n"
    "offline_store: { type: dask }\nentity_key_serialization_version: 3\n")
store = FeatureStore(repo_path=str(FOLDER))
user = Entity(name="user", join_keys=["user_id"], value_type=ValueType.INT64)
batch_source = FileSource(name="file", path=str(FOLDER / "users.parquet"), timestamp_field="event_timestamp")
store.apply([user, FeatureView(
    name="profile", entities=[user], ttl=timedelta(days=1), source=PushSource(name="users", batch_source=batch_source),
    schema=[Field(name="user_id", dtype=Int64)] + [Field(name=name, dtype=Float32) for name in NAMES])])
now, made = datetime.now(timezone.utc), random.Random(1)
for first in range(0, ENTITIES, BATCH):
    users = range(first, min(first + BATCH, ENTITIES))
    columns = {name: [made.randrange(1 << 24) / 1e3 for _ in users] for name in NAMES}
    store.write_to_online_store("profile", pd.DataFrame({"user_id": list(users), **columns, "event_timestamp": [now] * len(users)}))
