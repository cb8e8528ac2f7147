//! Clients of DeepStack's interface: a package of Python, and the rules by which Frigate reads answers.

use std::path::Path;
use std::process::Command;

use crate::access_mqtt::key;
use crate::daemon::{TestRoot, setup_root};
use crate::tools::run;

#[test]
fn clients_of_deepstack_find_objects_faces_and_scenes_with_a_key_of_their_own() {
    let python = setup_root().join("peers/deepstack/bin/python3");
    assert!(python.exists(), "{} is missing: `make setup-deepstack` gets it", python.display());
    let root = TestRoot::new().models(&["coco_detector", "face_detector", "efficientnet_lite0"]);
    let root = root.set("vision.scene=\"efficientnet_lite0\"").set("access.loopback=[]");
    let key = key(&root, &["cameras", "--role", "infer"]);
    let daemon = root.start();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut client = Command::new(python);
    client.arg(tests.join("peers/clients/deepstack_calls.py"));
    run(client.args([&daemon.address.port().to_string(), &key]).arg(tests.join("data/photos")));
}
