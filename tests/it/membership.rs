//! The daemon of a box that is a member of a platform, where its membership cannot be used.

use serde_json::json;

use crate::core::add_sub_request;
use crate::daemon::{TestRoot, write};

/// A member whose private key is encrypted under a key that this machine does not have, such as after its disk was put into
/// another one.
fn member_without_key() -> TestRoot {
    let root = TestRoot::new().models(&["add_sub"]);
    let folder = root.folder.path().join("membership");
    let at = |name: &str| folder.join(name).display().to_string();
    let membership = json!({
        "version": 1, "platform": "example", "box": "till-7", "join": "https://127.0.0.1:9/join",
        "fingerprint": "5a".repeat(32), "standing": {"state": "member", "inbox": "5a".repeat(16)},
    });
    let tls =
        format!("ca_file = \"{}\"\ncertificate_file = \"{1}\"\nkey_file = \"{1}\"\n", at("ca.pem"), at("identity.pem"));
    let settings = format!(
        "[device]\nid = \"till-7\"\n[membership]\nkey_file = \"{}\"\n[mqtt]\nbroker = \"mqtts://127.0.0.1:9\"\n[mqtt.tls]\n{tls}\
         [updates]\nrepository = \"https://127.0.0.1:9\"\nroot_file = \"{}\"\n[updates.tls]\n{tls}\
         [[egress.allow]]\nhost = \"127.0.0.1:9\"\nregion = \"eu\"\nsend = [\"certificates\", \"requests\", \"reports\", \"presence\"]\n",
        at("missing.key"),
        at("root.json"),
    );
    write(&folder.join("membership.json"), membership.to_string().as_bytes());
    write(&folder.join("settings.toml"), settings.as_bytes());
    write(&folder.join("root.json"), include_bytes!("../data/membership/box-2.join"));
    let authority = rcgen::generate_simple_self_signed(["ca".to_owned()]).unwrap();
    write(&folder.join("ca.pem"), authority.cert.pem().as_bytes());
    write(&folder.join("identity.pem"), b"LSE1 and the rest is of another machine");
    root
}

#[test]
fn a_member_whose_key_is_lost_serves_and_says_so() {
    let root = member_without_key();
    let finding = root.finding("membership");
    assert_eq!(finding["status"], "fail", "{finding}");
    let daemon = root.start();
    let answer = daemon.client().post_json("/v2/models/add_sub/infer", &add_sub_request(1, 1));
    assert_eq!(answer.status, 200, "{}", answer.error());
    assert!(daemon.log().contains("the key of the membership cannot be read"), "{}", daemon.log());
}
