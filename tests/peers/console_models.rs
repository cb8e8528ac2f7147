//! Models that a person adds in the console, in a real Chromium.

use serde_json::json;

use crate::browser::Browser;
use crate::catalogue::Kit;
use crate::daemon::{TestRoot, model_folder};
use crate::platform::wine;

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
    browser.wait_for("document.querySelector('.adding .notice.good')");
    assert_eq!(browser.text(".adding .notice.good"), "wine_mlp is added.");
    browser.wait_for("document.querySelector('table.list .badge.ok')");
    assert_eq!(daemon.client().post_json("/v2/models/wine_mlp/infer", &wine()).status, 200);

    // The other model of the catalogue has no weights that a runtime accepts: it says why.
    browser.click(".adding button[data-action='large add']");
    browser.wait_for("document.querySelector('.adding .error')");
    assert!(browser.text(".adding .error").contains("large"), "{}", browser.text(".adding .error"));
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
    browser.wait_for("document.querySelector('.adding .notice.good')");
    assert_eq!(browser.text(".adding .notice.good"), "add_sub is added.");
    browser.wait_for("document.querySelector('table.list .badge.ok')");

    browser.wait_for("document.querySelector('#model-folder:enabled')");
    browser.type_into("#model-folder", &model_folder("broken_cut").display().to_string());
    browser.wait_for("document.querySelector('.adding .error')");
    let told = browser.text(".adding .error");
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
    assert_eq!(browser.text(".adding .notice.good"), "add_sub is added.");
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
    assert!(browser.text("table.list .facts").contains("INPUT0 FP32"), "{}", browser.text("table.list .facts"));
}
