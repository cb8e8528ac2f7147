//! The feature store in the console, in a real Chromium.

use serde_json::json;

use crate::access_mqtt::key;
use crate::browser::Browser;
use crate::daemon::TestRoot;

const VIEWS: &str = r#"
[[entity]]
name = "machine"
join_key = "machine_id"
value_type = "Int64"

[[feature_view]]
name = "vibration"
entities = ["machine"]
ttl = "1h"
schema = [
  { name = "rms", dtype = "Float32", description = "mm/s" },
  { name = "program", dtype = "String", optional = true },
]

[[feature_service]]
name = "maintenance"
features = ["vibration:rms"]
"#;

/// Asks for the values of a machine; the answer.
fn read(browser: &Browser, machine: &str) -> String {
    browser.value("document.querySelector('#features .stack > [role=status]').replaceChildren()");
    browser.value("document.querySelector('#features input').value = ''");
    browser.type_into("#features input", machine);
    browser.click("#features form button");
    browser.wait_for("document.querySelector('#features .stack > [role=status]').innerText");
    browser.text("#features .stack > [role=status]")
}

#[test]
fn views_are_listed_and_an_entity_shows_its_values_with_their_status() {
    let root = TestRoot::closed().views(VIEWS);
    let viewer = key(&root, &["desk", "--role", "viewer"]);
    let daemon = root.start();
    let rows = json!({"machine_id": [7, 9_007_199_254_740_993_u64], "rms": [2.5, 3.5], "program": ["M8", null]});
    let pushed = daemon.client().post_json("/push", &json!({"push_source_name": "vibration", "df": rows}));
    assert_eq!(pushed.status, 200, "{pushed:?}");

    let browser = Browser::start();
    browser.go(&format!("http://{}/#features", daemon.address));
    browser.wait_for("document.querySelectorAll('#features tbody tr').length === 2");
    let told = browser.text("#features");
    for part in ["vibration", "machine", "rms Float32, mm/s", "1 h", "2 accepted", "maintenance", "vibration:rms"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let of_7 = read(&browser, "7");
    assert!(of_7.contains("2.5") && of_7.contains("M8") && of_7.contains("present"), "{of_7}");
    // More than the exact integers of JavaScript: 9007199254740992 is another machine.
    let large = read(&browser, "9007199254740993");
    assert!(large.contains("3.5") && large.contains("null value"), "{large}");
    assert!(read(&browser, "9007199254740992").contains("not found"));
    let wrong = read(&browser, "press");
    assert!(wrong.contains("machine_id") && !wrong.contains('{'), "an error in words: {wrong}");

    browser.click("#use-key");
    browser.type_into("#key-field", &viewer);
    browser.click("#key-form button.primary");
    browser.wait_for("document.querySelector('#features form button')?.disabled");
    assert!(browser.text("#features form").contains("needs the role infer, feature-writer or admin"));
}

#[test]
fn a_box_without_features_says_how_to_declare_them() {
    let (daemon, browser) = (TestRoot::closed().start(), Browser::start());
    browser.go(&format!("http://{}/#features", daemon.address));
    browser.wait_for("document.querySelector('#features .notice')");
    assert!(browser.text("#features .notice").contains("feature_views.d"));
}
