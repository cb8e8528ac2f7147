//! The console in a real Chromium.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::access_mqtt::key;
use crate::boxes::{self, start};
use crate::broker::Broker;
use crate::browser::Browser;
use crate::daemon::TestRoot;
use crate::page::commands;
use crate::tools::run;

/// A photograph with cows.
fn cows() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/photos/cows.jpg").display().to_string()
}

#[test]
fn a_first_look_without_a_key_shows_figures_findings_and_models() {
    let daemon = TestRoot::closed().models(&["add_sub", "broken_cut"]).start();
    let browser = Browser::start();
    browser.go(&format!("http://{}/", daemon.address));
    browser.wait_for("document.querySelector('.findings h2')");
    assert!(browser.text("#caller").starts_with("ip:127.0.0.1"), "{}", browser.text("#caller"));
    let findings = browser.text(".findings");
    assert!(findings.contains("model broken_cut") && findings.contains("cut off"), "{findings}");
    // The first live sample draws the first lines.
    browser.wait_for("document.querySelectorAll('.plot polyline, .plot circle').length > 3");
    assert_eq!(browser.text("#now .live"), "live");
    let now = "document.querySelector('#now').textContent";
    browser.wait_for(&format!("{now}.includes('What was unusual') && {now}.includes('Room for more work')"));

    browser.click("#to-models");
    browser.wait_for("document.querySelectorAll('table.list tbody tr').length === 2");
    let models = browser.text("table.list");
    assert!(models.contains("add_sub") && models.contains("ready") && models.contains("unavailable"), "{models}");
    let is_disabled = "[...document.querySelectorAll('.actions button')].every((button) => button.disabled)";
    assert_eq!(browser.value(is_disabled), json!(true), "this machine may not load models");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// Learning takes a week, so the answer about unusual figures is replaced in the browser.
#[test]
fn an_unusual_figure_is_marked_in_its_plot_and_called_normal_by_one_button() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let browser = Browser::start();
    browser.go(&format!("http://{}/", daemon.address));
    browser.wait_for("document.querySelectorAll('.plot polyline, .plot circle').length > 3");
    browser.run(
        "const real = window.fetch; window.posted = [];
         const began = new Date(Date.now() - 60000).toISOString();
         const bands = { end: new Date(Date.now() - 20000).toISOString(), interval_s: 60, low: [0.2, null, 0.1, 0.1], high: [0.5, null, 0.7, 0.6] };
         const series = { series: 'box', column: 'cores_busy', state: 'unusual', needed_minutes: 0, band: { low: 0.1, high: 0.6 }, bands, text: 'x' };
         const event = { series: 'box', column: 'cores_busy', kind: 'level_shift', direction: 'up', began, ended: null, end: null,
           value: 2, band: { low: 0.1, high: 0.6 }, text: '<b>more than usual</b>' };
         window.fetch = (path, options) => {
           if (path.startsWith('/unusual/')) { window.posted.push(`${options.method} ${path}`); return Promise.resolve(new Response('', { status: 200 })); }
           if (path !== '/unusual') return real(path, options);
           return Promise.resolve(new Response(JSON.stringify({ alarms_per_week: 1, series: [series], events: [event] }),
             { headers: { 'content-type': 'application/json' } }));
         };",
    );
    // A section that is shown again asks again.
    browser.click("#to-models");
    browser.wait_for("!document.querySelector('#models').hidden");
    browser.click("#to-now");
    browser.wait_for("document.querySelectorAll('.plot .event').length === 1");
    assert_eq!(browser.value("document.querySelectorAll('.plot .usual').length"), json!(1));
    let outlines =
        "[...document.querySelectorAll('.plot .was-usual')].map((one) => one.getAttribute('points').split(' ').length)";
    assert_eq!(browser.value(outlines), json!([4, 6]), "a time without usual values parts them");
    let now = browser.text("#now");
    assert!(now.contains("<b>more than usual</b>") && now.contains("goes on"), "{now}");
    browser.run(
        "[...document.querySelectorAll('#now button')].find((one) => one.textContent === 'This was normal').click()",
    );
    browser.wait_for("window.posted.length === 1");
    assert_eq!(browser.value("window.posted[0]"), json!("POST /unusual/box/cores_busy/normal"));
}

#[test]
fn ten_tabs_work_over_plain_http_and_a_box_that_is_away_has_no_green_dot() {
    let mut daemon = TestRoot::closed().models(&["add_sub"]).start();
    let browser = Browser::start();
    let tabs: Vec<_> = (0..10).map(|_| browser.new_tab()).collect();
    for tab in &tabs {
        browser.switch_to(tab);
        browser.go(&format!("http://{}/", daemon.address));
        browser.wait_for("document.querySelector('#now .live')?.innerText === 'live'");
        browser.wait_for("document.querySelector('.findings h2')");
    }
    // Each of them gets new samples.
    for tab in &tabs {
        browser.switch_to(tab);
        browser.wait_for("document.querySelectorAll('.plot polyline').length > 2");
        browser.click("#to-models");
        browser.wait_for("document.querySelectorAll('#models table.list tbody tr').length === 1");
        assert!(browser.value("document.title").as_str().unwrap().starts_with("Models – "));
    }
    browser.click("#to-now");
    // No failed call, no red line along the axis.
    assert_eq!(browser.value("document.querySelectorAll('.plot .line.bad').length"), json!(0));
    let colour = "getComputedStyle(document.querySelector('#now .live'), '::before').backgroundColor";
    let green = browser.value(colour);
    daemon.signal("TERM");
    daemon.wait();
    browser.wait_for("document.querySelector('#now .live').innerText === 'reconnecting'");
    assert_ne!(browser.value(colour), green);
}

#[test]
fn a_photograph_gets_boxes_and_the_commands_that_ask_the_same() {
    let daemon = TestRoot::closed().models(&["coco_detector"]).start();
    let browser = Browser::start();
    browser.go(&format!("http://{}/#try/coco_detector", daemon.address));
    browser.wait_for("document.querySelector('#try-file')");
    browser.type_into("#try-file", &cows());
    browser.wait_for("document.querySelectorAll('.mark .box').length > 2");
    let answer = browser.text(".result");
    assert!(answer.contains("cow") && answer.contains("compute"), "{answer}");

    // Boxes lie over the picture, which is shown in its own proportions.
    let inside = "(() => { const [picture, box] = [document.querySelector('.picture img'), document.querySelector('.mark .box')]\
                  .map((one) => one.getBoundingClientRect()); return box.left >= picture.left - 1 && box.right <= picture.right + 1 \
                  && box.top >= picture.top - 1 && box.bottom <= picture.bottom + 1 && box.width > 5; })()";
    assert_eq!(browser.value(inside), json!(true));
    let curl = browser.text(".command pre").replace("@cows.jpg", &format!("@{}", cows()));
    let told = run(Command::new("sh").args(["-c", &curl]));
    assert!(told.contains("\"label\":\"cow\""), "{told}");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn every_command_of_the_page_asks_what_was_tried() {
    let broker = Broker::new();
    let daemon = start(boxes::root(&broker).models(&["coco_detector", "all_minilm_l6_v2", "bike_demand", "add_sub"]));
    let browser = Browser::start();
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(cows(), folder.path().join("cows.jpg")).unwrap();
    let row = "month,weekday,weather,hour,day_off,temperature\nJul,Fri,clear,17,false,29\n";
    for (model, shown, said) in [
        ("coco_detector", "#try-file", "cow"),
        ("all_minilm_l6_v2", "#text-1", "embedding"),
        ("bike_demand", "#rows", "value"),
        ("add_sub", "#request", "OUTPUT0"),
    ] {
        browser.go(&format!("http://{}/", daemon.address));
        browser.go(&format!("http://{}/#try/{model}", daemon.address));
        browser.wait_for(&format!(
            "document.querySelector('{shown}') && document.querySelector('#try-model').value === '{model}'"
        ));
        match shown {
            "#try-file" => browser.type_into(shown, &cows()),
            "#rows" => {
                browser.type_into(shown, row);
                browser.click(".input button.primary");
            }
            _ => browser.click(".input button.primary"),
        }
        browser.wait_for("document.querySelectorAll('.command').length === 3");
        let texts = browser.value("[...document.querySelectorAll('.command pre')].map((one) => one.textContent)");
        for (program, text) in ["sh", "python3", "sh"].iter().zip(texts.as_array().unwrap()) {
            let text = text.as_str().unwrap();
            let text = ["rr -W 30", "sub -W 30", "pub"].iter().fold(text.to_owned(), |text, program| {
                let usual = format!("mosquitto_{} ", program.split(' ').next().unwrap());
                text.replace(&usual, &format!("mosquitto_{program} -p {} ", broker.port))
            });
            let told = run(Command::new(program).args(["-c", &text]).current_dir(folder.path()));
            assert!(told.contains(said), "{text}: {told}");
        }
    }
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn a_key_is_asked_for_a_wrong_one_is_told_and_a_right_one_is_forgotten() {
    let root = TestRoot::closed().models(&["add_sub"]).set("access.loopback=[]");
    let operator = key(&root, &["desk", "--role", "operator", "--role", "infer"]);
    let daemon = root.start();
    let browser = Browser::start();
    browser.go(&format!("http://{}/#models", daemon.address));
    browser.wait_for("document.querySelector('#key-dialog').open");
    assert!(browser.text("#key-reason").contains("needs the role"), "{}", browser.text("#key-reason"));
    browser.type_into("#key-field", "ledge_00000000_wrong");
    browser.click("#key-form button.primary");
    browser.wait_for("document.querySelector('#key-reason').innerText.includes('malformed')");

    browser.value("document.querySelector('#key-field').value = ''");
    browser.type_into("#key-field", &operator);
    browser.click("#key-form button.primary");
    browser.wait_for("document.querySelector('table.list')");
    assert!(browser.text("#caller").starts_with("key:desk"), "{}", browser.text("#caller"));
    browser.click("button[data-action='add_sub unload']");
    browser.wait_for("document.querySelector('table.list').innerText.includes('unloaded')");
    browser.click("button[data-action='add_sub load']");
    browser.wait_for("document.querySelector('table.list .badge.ok')");

    // The commands name a variable in place of the key, and the page keeps the key nowhere.
    browser.click("#to-try");
    browser.wait_for("document.querySelector('#request')");
    browser.click(".input button.primary");
    browser.wait_for("document.querySelector('.commands')");
    assert!(browser.text(".commands").contains("$LEDGE_KEY"));
    let kept = "document.documentElement.outerHTML + document.cookie + location.href + JSON.stringify({...localStorage}) \
                + JSON.stringify({...sessionStorage})";
    assert!(!browser.value(kept).as_str().unwrap().contains(&operator[..20]));
    browser.click("#forget-key");
    browser.wait_for("document.querySelector('#caller').innerText === 'not let in'");
    assert_eq!(browser.value("document.querySelectorAll('table.list tbody tr').length"), json!(0));
}

#[test]
fn a_page_of_another_server_on_this_machine_reads_and_changes_nothing() {
    let daemon = TestRoot::new().models(&["add_sub"]).start();
    let other = TestRoot::closed().start();
    let browser = Browser::start();
    browser.go(&format!("http://{}/openapi.json", other.address));
    let box_ = daemon.address;
    for path in ["/figures", "/findings", "/v2/models/add_sub", "/access", "/cameras"] {
        let read = browser.promised(&format!("fetch('http://{box_}{path}').then((answer) => answer.text())"));
        assert!(read.as_str().unwrap().starts_with("error"), "{path}: {read}");
    }
    // A form needs no leave of the other side, and its answer cannot be read.
    let unload =
        format!("fetch('http://{box_}/v2/repository/models/add_sub/unload', {{method: 'POST', mode: 'no-cors'}})");
    browser.promised(&format!("{unload}.then(() => 'sent')"));
    assert_eq!(daemon.client().get("/v2/models/add_sub/ready").status, 200);
    assert!(daemon.client().get("/metrics").status == 200, "programs of this machine still may");
}

#[test]
fn the_commands_of_the_page_work() {
    let page = include_str!("../../docs/console.md");
    let lines = |heading: &str| commands(page, heading).into_iter().flatten().map(|line| line.text).collect::<Vec<_>>();
    let daemon = TestRoot::new().start();
    for line in lines("## Who may see it") {
        let words: Vec<_> = line.strip_prefix("sudo ledge ").unwrap().split(' ').collect();
        let told = run(&mut daemon.root.command(&words));
        assert!(told.starts_with("Sign in as anna (viewer, infer)"), "{line}: {told}");
    }
    let [listen] = &lines("## The calls behind it")[..] else { panic!("one command") };
    let listen = listen.replace("127.0.0.1:8000", &daemon.address.to_string());
    let told = run(Command::new("sh").args(["-c", &listen]));
    assert!(told.starts_with(": one event") && told.contains("\"calls_per_s\":0.0"), "{told}");
}
