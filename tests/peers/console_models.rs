//! Models that a person adds in the console, in a real Chromium.

use serde_json::json;

use crate::access_mqtt::key;
use crate::browser::Browser;
use crate::catalogue::Kit;
use crate::daemon::{TestDaemon, TestRoot, model_folder};
use crate::platform::wine;

/// The models of a repository with many broken ones in addition, which load in no time.
const READY: [&str; 3] = ["add_sub", "fixed_shape", "scalar_out"];

/// A box with 203 models.
fn many_models() -> TestRoot {
    let mut root = TestRoot::new().models(&READY);
    for number in 0..200 {
        root = root.model_as("broken_empty", &format!("broken_{number:03}"));
    }
    root
}

fn call(daemon: &TestDaemon) {
    let tensor = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1.0; 16]});
    let request = json!({"inputs": [tensor("INPUT0"), tensor("INPUT1")]});
    assert_eq!(daemon.client().post_json("/v2/models/add_sub/infer", &request).status, 200);
}

fn open(browser: &Browser, daemon: &TestDaemon) {
    browser.go(&format!("http://{}/#models", daemon.address));
    browser.wait_for("document.querySelector('button[data-action=\"add_sub unload\"]')");
}

fn state(daemon: &TestDaemon, model: &str) -> String {
    daemon.client().state(model).0
}

#[test]
fn a_double_click_unloads_one_model_and_undo_brings_it_back() {
    let daemon = TestRoot::new().models(&READY).start();
    let browser = Browser::start();
    open(&browser, &daemon);
    let place = "document.querySelector('button[data-subject=\"add_sub\"]').getBoundingClientRect().top";
    let before = browser.value(place);
    browser.double_click("button[data-action='add_sub unload']");
    browser.wait_for("document.querySelector('#messages .good')");
    assert_eq!(browser.text("#messages .good p"), "add_sub is unloaded.");
    browser.wait_for("document.querySelector('button[data-action=\"add_sub load\"]')");
    assert_eq!(browser.value(place), before, "nothing has moved");
    assert_eq!(READY.map(|model| state(&daemon, model)), ["UNAVAILABLE", "READY", "READY"]);

    browser.click("#messages .good button");
    browser.wait_for("document.querySelector('#messages .good')?.innerText.includes('is loaded')");
    assert_eq!(state(&daemon, "add_sub"), "READY");
    browser.click("#messages button:last-child");
    browser.wait_for("!document.querySelector('#messages *')");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_model_that_had_calls_is_unloaded_after_a_question() {
    let daemon = TestRoot::new().models(&READY).start();
    call(&daemon);
    let browser = Browser::start();
    open(&browser, &daemon);
    // The dialog opens under the second click, which is no answer.
    browser.double_click("button[data-action='add_sub unload']");
    browser.wait_for("document.querySelector('#confirm-dialog').open");
    let asked = browser.text("#confirm-dialog");
    assert!(asked.contains("Unload add_sub?") && asked.contains("had 1 calls"), "{asked}");
    browser.click("#confirm-dialog button:not(.primary)");
    assert_eq!(state(&daemon, "add_sub"), "READY");
    browser.click("button[data-action='add_sub unload']");
    browser.wait_for("document.querySelector('#confirm-dialog').open");
    browser.click("#confirm-dialog button.primary");
    browser.wait_for("document.querySelector('#messages .good')?.innerText.includes('add_sub is unloaded')");
    assert_eq!(READY.map(|model| state(&daemon, model)), ["UNAVAILABLE", "READY", "READY"]);
}

#[test]
fn two_hundred_models_are_one_call_of_a_limited_key_and_can_be_searched() {
    let root = many_models().set("access.loopback=[]");
    let viewer = key(&root, &["desk", "--role", "viewer", "--max-rate", "20"]);
    let daemon = root.start();
    let browser = Browser::start();
    browser.go(&format!("http://{}/#models", daemon.address));
    browser.wait_for("document.querySelector('#key-dialog').open");
    browser.type_into("#key-field", &viewer);
    browser.click("#key-form button.primary");
    browser.wait_for("document.querySelectorAll('#models table.list tbody tr').length === 203");
    // One call each time that the list is looked at, and none for a model.
    let calls = "performance.getEntriesByType('resource').map((one) => new URL(one.name).pathname)";
    let calls = browser.value(&format!("{calls}.filter((path) => /^\\/(models|v2)/.test(path) && path !== '/models')"));
    assert_eq!(calls, json!([]));
    let row_texts = |name: &str| {
        let row = format!(
            "[...document.querySelectorAll('#models tbody tr')].find((row) => row.querySelector('.name').innerText === '{name}')"
        );
        browser.value(&format!("[...({row}).querySelectorAll('td')].slice(0, 7).map((cell) => cell.innerText)"))
    };
    for model in READY {
        assert_eq!(row_texts(model), json!(["1", "ready", "ONNX Runtime", "0", "0", "–", "shared"]), "{model}");
    }

    let shown = || browser.text(".finder [role=status]");
    assert_eq!(shown(), "203 models");
    browser.type_into(".finder input", "broken_19");
    browser.wait_for("document.querySelectorAll('#models table.list tbody tr').length === 10");
    assert_eq!(shown(), "10 of 203 models");
    browser.run(
        "const one = document.querySelector('.finder input'); one.value = ''; one.dispatchEvent(new Event('input'))",
    );
    browser.run("const one = document.querySelector('.finder select'); one.value = 'Ready'; one.dispatchEvent(new Event('change'))");
    browser.wait_for("document.querySelectorAll('#models table.list tbody tr').length === 3");
    let first = "document.querySelector('#models tbody .name').innerText";
    assert_eq!(browser.value(first), json!("add_sub"));
    // The others have no failed calls, so their order by name stays.
    browser.run("const one = document.querySelectorAll('.finder select')[1]; one.value = 'Most failed calls'; one.dispatchEvent(new Event('change'))");
    assert_eq!(browser.value(first), json!("add_sub"));
    // Without its key the page was refused, and asked for one.
    let others: Vec<_> = browser.complaints().into_iter().filter(|line| !line.contains("/access - ")).collect();
    assert_eq!(others, [""; 0]);
}

#[test]
fn a_model_of_the_catalogue_is_added_used_and_removed() {
    let kit = Kit::new();
    let daemon = kit.box_at_folder().start();
    let browser = Browser::start();
    browser.go(&format!("http://{}/#models", daemon.address));
    browser.wait_for("document.querySelector('.adding button[data-action=\"catalogue refresh\"]')");
    assert!(browser.text(".adding").contains("not read yet"), "{}", browser.text(".adding"));
    browser.click(".adding button[data-action='catalogue refresh']");
    browser.wait_for("document.querySelectorAll('.adding table.list tbody tr').length === 2");
    browser.click(".adding button[data-action='wine_mlp add']");
    browser.wait_for("document.querySelector('#messages .good')");
    assert_eq!(browser.text("#messages .good p"), "wine_mlp is added.");
    browser.wait_for("document.querySelector('table.list .badge.ok')");
    assert_eq!(daemon.client().post_json("/v2/models/wine_mlp/infer", &wine()).status, 200);

    // The other model of the catalogue has no weights that a runtime accepts: it says why.
    browser.click(".adding button[data-action='large add']");
    browser.wait_for("document.querySelector('#messages .error')");
    assert!(browser.text("#messages .error").contains("large"), "{}", browser.text("#messages .error"));
    browser.wait_for("document.querySelector('table.list .reason')");

    browser.click("button[data-action='wine_mlp remove']");
    browser.wait_for("document.querySelector('#confirm-dialog').open");
    browser.click("#confirm-dialog button.primary");
    browser.wait_for("!document.querySelector('button[data-action=\"wine_mlp unload\"]')");
    assert_eq!(daemon.client().post_json("/v2/models/wine_mlp/infer", &wine()).status, 404);
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_folder_becomes_a_model_and_one_that_does_not_load_leaves_its_reason() {
    let daemon = TestRoot::new().set("catalogue.upload_max_mb=8").set("updates.min_free_mb=0").start();
    let browser = Browser::start();
    browser.go(&format!("http://{}/#models", daemon.address));
    browser.wait_for("document.querySelector('#model-folder:enabled')");
    browser.type_into("#model-folder", &model_folder("add_sub").display().to_string());
    browser.wait_for("document.querySelector('#messages .good')");
    assert_eq!(browser.text("#messages .good p"), "add_sub is added.");
    browser.wait_for("document.querySelector('table.list .badge.ok')");

    browser.wait_for("document.querySelector('#model-folder:enabled')");
    browser.type_into("#model-folder", &model_folder("broken_cut").display().to_string());
    browser.wait_for("document.querySelector('#messages .error')");
    let told = browser.text("#messages .error");
    assert!(told.contains("removed again") && told.contains("cut off"), "{told}");
    let index = daemon.client().post("/v2/repository/index", &[], b"").json();
    assert_eq!(index.as_array().unwrap().len(), 1, "{index}");
    let complaints = browser.complaints();
    assert!(complaints.iter().all(|line| line.contains("422")), "{complaints:?}");
    assert_eq!(index[0]["state"], json!("READY"));
}

#[test]
fn a_dropped_folder_becomes_a_model_that_can_be_removed_and_a_model_of_the_owner_cannot() {
    let root = TestRoot::new().models(&["fixed_shape"]).set("catalogue.upload_max_mb=8");
    let daemon = root.set("updates.min_free_mb=0").start();
    let browser = Browser::start();
    browser.go(&format!("http://{}/#models", daemon.address));
    browser.wait_for("document.querySelector('#model-folder:enabled')");
    browser.drop_file(".adding .drop", &model_folder("add_sub"));
    browser.wait_for("document.querySelector('button[data-action=\"add_sub remove\"]')");
    assert_eq!(browser.text("#messages .good p"), "add_sub is added.");
    let removable = browser.value("document.querySelector('button[data-action=\"fixed_shape remove\"]')");
    assert!(removable.is_null(), "{removable}");
    browser.click("button[data-action='add_sub remove']");
    browser.wait_for("document.querySelector('#confirm-dialog').open");
    browser.click("#confirm-dialog button.primary");
    browser.wait_for("!document.querySelector('button[data-action=\"add_sub remove\"]')");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn without_the_role_the_page_says_where_a_model_is_copied_to() {
    let daemon = TestRoot::closed().models(&["add_sub"]).start();
    let browser = Browser::start();
    browser.go(&format!("http://{}/#models", daemon.address));
    browser.wait_for("document.querySelector('.adding .pane')");
    let told = browser.text(".adding");
    assert!(told.contains(&daemon.root.folder.path().join("models").display().to_string()), "{told}");
    assert!(told.contains("[catalogue] address") && told.contains("upload_max_mb"), "{told}");
    browser.wait_for("document.querySelector('table.list details')");
    browser.click("table.list details summary");
    browser.wait_for("document.querySelector('table.list .facts')");
    assert!(browser.text("table.list .facts").contains("INPUT0 FP32"), "{}", browser.text("table.list .facts"));
}
