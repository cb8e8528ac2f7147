//! Feast's own SDK, unmodified, with Ledge as its remote online store.

use std::path::Path;
use std::process::Command;

use crate::daemon::{TestRoot, setup_root};
use crate::tools;

/// The views that `clients/feast_sdk.py` declares to Feast. `absent` and the feature service `nowhere` are missing here
/// on purpose.
const VIEWS: &str = r#"
[[entity]]
name = "driver"
join_key = "driver_id"
value_type = "Int64"

[[entity]]
name = "line"
value_type = "String"

[[feature_view]]
name = "driver_stats"
entities = ["driver"]
ttl = "24h"
source = { name = "driver_push" }
schema = [
  { name = "conv_rate", dtype = "Float32" },
  { name = "score", dtype = "Float64" },
  { name = "trips", dtype = "Int64" },
  { name = "city", dtype = "String" },
]

[[feature_view]]
name = "kinds"
entities = ["driver"]
source = { name = "kinds_push" }
schema = [
  { name = "raw", dtype = "Bytes" },
  { name = "small", dtype = "Int32" },
  { name = "flag", dtype = "Bool" },
  { name = "seen", dtype = "UnixTimestamp" },
  { name = "floats", dtype = "Array(Float32)" },
  { name = "doubles", dtype = "Array(Float64)" },
  { name = "ints", dtype = "Array(Int64)" },
  { name = "texts", dtype = "Array(String)" },
  { name = "flags", dtype = "Array(Bool)" },
]

[[feature_view]]
name = "pairs"
entities = ["driver", "line"]
source = { name = "pairs_push", timestamp_field = "happened" }
schema = [{ name = "score", dtype = "Float64" }]

[[feature_service]]
name = "driver_activity"
features = ["driver_stats:trips", "driver_stats:conv_rate"]
"#;

#[test]
fn feasts_own_sdk_writes_pushes_and_reads() {
    let daemon = TestRoot::new().views(VIEWS).start();
    let python = setup_root().join("peers/feast/bin/python3");
    assert!(python.is_file(), "{} is missing: `make setup-feast` gets it", python.display());
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/clients/feast_sdk.py");
    let mut command = Command::new(python);
    command.arg(script).arg(format!("http://{}", daemon.address)).arg(folder.path());
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    assert_eq!(tools::run(&mut command).trim(), "ok");
}
