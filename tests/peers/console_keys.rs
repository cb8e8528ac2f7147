//! Keys in the console, in a real Chromium: one that the page asks for, and those that it creates and revokes.

use std::net::{IpAddr, UdpSocket};
use std::process::Command;

use serde_json::json;

use crate::access_mqtt::key;
use crate::browser::Browser;
use crate::certificates::Authority;
use crate::console_looks::{axe, faults};
use crate::daemon::TestRoot;
use crate::tls_kit::put;
use crate::tools::{path_of, run};

/// An address of this machine that is not loopback: that of the way to others, which nothing is sent on.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let connected = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
    connected.expect("this machine has an address besides loopback").ip()
}

/// The hash of the public key of a certificate, by which Chromium trusts it.
fn public_key_hash(root: &TestRoot) -> String {
    let openssl = path_of("openssl").display().to_string();
    let hash = "$0 x509 -in \"$1\" -noout -pubkey | $0 pkey -pubin -outform der | $0 dgst -sha256 -binary | $0 base64";
    let certificate = root.folder.path().join("box.pem");
    run(Command::new("sh").args(["-c", hash, &openssl]).arg(certificate)).trim_end().to_owned()
}

fn enter(browser: &Browser, key: &str) {
    browser.value("document.querySelector('#key-field').value = ''");
    browser.type_into("#key-field", key);
    browser.click("#key-form button.primary");
}

#[test]
fn over_https_a_person_signs_in_with_a_key_or_a_code_and_out() {
    let address = own_address();
    let root = TestRoot::closed()
        .models(&["add_sub"])
        .set(&format!("http.listen=[\"https://{address}:0\", \"unix:ledge.sock\"]"));
    let root = root.set("http.tls.certificate_file=\"box.pem\"").set("http.tls.key_file=\"box.key\"");
    put(&root, &Authority::new().issue(&address.to_string()));
    let admin = key(&root, &["desk", "--role", "admin"]);
    let trusted = format!("--ignore-certificate-errors-spki-list={}", public_key_hash(&root));
    let daemon = root.start();
    let browser = Browser::with(&[&trusted]);
    browser.go(&format!("https://{}/#keys", daemon.address));
    browser.wait_for("document.querySelector('#key-dialog').open");
    assert_eq!(browser.text("#caller"), "not let in");
    assert!(browser.text("#key-reason").contains("needs the role"), "{}", browser.text("#key-reason"));
    assert_eq!(browser.value("isSecureContext"), json!(true));

    // An invalid key, one that is unknown here, and the right one.
    enter(&browser, "open sesame");
    browser.wait_for("document.querySelector('#key-reason').innerText.includes('unknown sign-in code')");
    enter(&browser, &format!("ledge_00000000_{}", &admin[15..]));
    browser.wait_for("document.querySelector('#key-reason').innerText.includes('unknown API key')");
    assert_eq!(browser.text("#caller"), "not let in");
    enter(&browser, &admin);
    browser.wait_for("document.querySelector('#keys table.list')");
    assert_eq!(browser.text("#caller"), "key:desk · admin");
    let keys = browser.text("#keys table.list");
    assert!(keys.contains("desk") && keys.contains("this page uses it"), "{keys}");
    browser.click("#to-models");
    browser.wait_for("document.querySelector('#models table.list')");

    // The session outlives a reload, in this tab and for this origin only. No script reads its cookie, and the key is kept
    // nowhere.
    browser.value("location.reload()");
    browser.wait_for("document.querySelector('#models table.list')");
    assert_eq!(browser.text("#caller"), "key:desk · admin");
    assert_eq!(browser.value("document.cookie"), json!(""));
    let stored = browser.value("JSON.stringify([localStorage, sessionStorage])");
    assert!(!stored.to_string().contains(&admin[15..]), "{stored}");
    browser.value("sessionStorage.clear()");
    browser.value("location.reload()");
    browser.wait_for("document.querySelector('#key-dialog')?.open");
    assert_eq!(browser.text("#caller"), "not let in");
    assert_eq!(browser.value("document.querySelectorAll('table.list').length"), json!(0), "the cookie alone");

    // A code in the address is offered, and signs in at a press.
    let made = daemon.root.command(&["login", "--name", "anna", "--role", "viewer", "--json"]).output().unwrap();
    let made: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    let code = made["code"].as_str().unwrap().replace('-', "");
    // The daemon chose the port.
    assert_eq!(made["pages"], json!([format!("https://{address}:0")]));
    browser.go("about:blank");
    browser.go(&format!("https://{}/#sign-in={code}", daemon.address));
    browser.wait_for("document.querySelector('#key-dialog')?.open && document.querySelector('#key-field').value");
    assert_eq!(browser.text("#caller"), "not let in");
    assert!(!browser.value("location.href").to_string().contains(&code));
    browser.click("#key-form button.primary");
    browser.wait_for("document.querySelector('#caller').innerText == 'person:anna · viewer'");
    browser.click("#forget-key");
    browser.wait_for("document.querySelector('#caller').innerText == 'not let in'");
    let left = daemon.unix_client().get("/sessions").json();
    assert!(!left.to_string().contains("anna") && left.to_string().contains("key:desk"), "{left}");
}

#[test]
fn an_admin_creates_a_key_sees_it_once_and_revokes_it() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let browser = Browser::start();
    browser.go(&format!("http://{}/#keys", daemon.address));
    browser
        .wait_for("document.querySelector('#keys .section-head button') && document.querySelector('#keys table.list')");
    let open = || {
        browser.click("#keys .section-head button");
        browser.wait_for("document.querySelector('#key-name')");
    };
    let made = || {
        browser.click(".key-form button.primary");
        browser.wait_for("document.querySelector('.key-form pre')");
        browser.text(".key-form pre")
    };
    browser.run(&axe());
    open();
    assert_eq!(faults(&browser), [""; 0], "the form");
    browser.type_into("#key-name", "till-7");
    browser.click(".key-form button.primary");
    browser.wait_for("document.querySelector('.key-form .error')?.innerText.includes('at least one role')");
    browser.click("input[name=roles][value=infer]");
    browser.click("input[name=models-for][value=only]");
    browser.click("input[name=models][value=add_sub]");
    let key = made();
    assert_eq!(faults(&browser), [""; 0], "the key");
    let status = |path: &str| {
        let header = format!("x-api-key: {key}");
        let url = format!("http://{}{path}", daemon.address);
        run(Command::new(path_of("curl")).args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", &header, &url]))
    };
    assert_eq!([status("/v2/models/add_sub"), status("/keys")], ["200", "403"]);
    let is_shown =
        |key: &str| browser.value("document.documentElement.outerHTML").as_str().unwrap().contains(&key[15..]);
    assert!(is_shown(&key));
    browser.click(".key-form button.primary");
    assert!(!is_shown(&key), "it is closed");

    // The same for one that is left without closing it.
    open();
    browser.type_into("#key-name", "tablet");
    browser.click("input[name=roles][value=viewer]");
    let other = made();
    browser.click("#to-models");
    browser.wait_for("document.querySelector('#models table.list')");
    assert!(!is_shown(&other), "the section is left");
    browser.click("#to-keys");
    browser.wait_for("document.querySelectorAll('#keys [data-action$=revoke]').length === 2");
    assert!(!is_shown(&other) && !is_shown(&key));

    browser.click("[data-action='till-7 revoke']");
    browser.wait_for("document.querySelector('#confirm-dialog').open");
    // The button that changes nothing has the focus.
    assert_eq!(browser.value("document.activeElement.innerText"), json!("Cancel"));
    assert_eq!(faults(&browser), [""; 0], "the question");
    browser.click("#confirm-dialog button.primary");
    browser.wait_for("document.querySelector('#messages .good')?.innerText.includes('till-7 is revoked')");
    browser.wait_for("document.querySelectorAll('#keys [data-action$=revoke]').length === 1");
    assert_eq!(status("/v2/models/add_sub"), "401");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn who_is_no_admin_learns_what_it_is_and_what_that_takes() {
    let daemon = TestRoot::closed().start();
    let browser = Browser::start();
    browser.go(&format!("http://{}/#keys", daemon.address));
    browser.wait_for("document.querySelector('#keys table.list')");
    let page = browser.text("#keys");
    assert!(page.contains("you need the role admin") && page.contains("ip:127.0.0.1"), "{page}");
    assert!(page.contains("Roles: viewer, infer, feature-writer") && page.contains("read features"), "{page}");
    let yours = "[...document.querySelectorAll('#keys tr .badge')].map((one) => one.closest('tr').querySelector('.name').innerText)";
    assert_eq!(browser.value(yours), json!(["viewer", "infer", "feature-writer"]));
    assert_eq!(browser.value("document.querySelector('#keys .section-head button').checkVisibility()"), json!(false));
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_foreign_page_neither_reads_keys_nor_creates_or_revokes_one() {
    // Programs of this machine may do everything, and pages of other servers nothing.
    let root = TestRoot::new();
    key(&root, &["till", "--role", "infer"]);
    let daemon = root.start();
    let other = TestRoot::closed().start();
    let browser = Browser::start();
    browser.go(&format!("http://{}/openapi.json", other.address));
    let box_ = daemon.address;
    for path in ["/keys", "/roles"] {
        let read = browser.promised(&format!("fetch('http://{box_}{path}').then((answer) => answer.text())"));
        assert!(read.as_str().unwrap().starts_with("error"), "{path}: {read}");
    }
    let body = json!(json!({"name": "back-door", "roles": ["admin"]}).to_string());
    for (path, body) in [("/keys", &body), ("/keys/till/revoke", &json!("{}"))] {
        // One that needs no permission of the other side and has an unreadable answer, and one with JSON that asks for
        // permission.
        let post = |more: &str| {
            format!("fetch('http://{box_}{path}', {{method: 'POST', body: {body}, {more}}}).then(() => 'sent')")
        };
        assert_eq!(browser.promised(&post("mode: 'no-cors'")), json!("sent"), "{path}");
        let asked = browser.promised(&post("headers: {'content-type': 'application/json'}"));
        assert!(asked.as_str().unwrap().starts_with("error"), "{path}: {asked}");
    }
    let keys = daemon.client().get("/keys").json()["keys"].clone();
    let states: Vec<_> =
        keys.as_array().unwrap().iter().map(|key| (key["name"].clone(), key["state"].clone())).collect();
    assert_eq!(states, [(json!("till"), json!("valid"))]);
}
