//! The audit log in the console, in a real Chromium: verified by the page's own code, against logs that were changed by
//! one bit or rewritten.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ledge::audit::layout::{FULL_WIDTH, TileKind, TilePath, whole_entries};
use serde_json::{Value, json};

use crate::access_mqtt::key;
use crate::audit_log::{Attacked, AuditBox};
use crate::boxes::wait_until;
use crate::browser::Browser;
use crate::daemon::{TestRoot, copy, write};

/// A server between the browser and a daemon that lies about the files of the first log, or the state of all.
struct Liar {
    address: SocketAddr,
    lie: Arc<Mutex<Lie>>,
}

#[derive(Clone, Default)]
enum Lie {
    #[default]
    Nothing,
    /// The bit of one byte of one file.
    Flip { path: String, at: usize, bit: u8 },
    /// All files are those of a folder, the checkpoint that of a file.
    Instead { folder: PathBuf, checkpoint: PathBuf },
    /// A member of the state.
    Status { name: &'static str, value: String },
}

const LOG: &str = "/audit/logs/1/";

impl Liar {
    fn start(daemon: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, lie) = (listener.local_addr().unwrap(), Arc::<Mutex<Lie>>::default());
        let told = lie.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let told = told.clone();
                // A browser that ends closes its connections in the middle.
                std::thread::spawn(move || drop(answer(stream, daemon, &told)));
            }
        });
        Self { address, lie }
    }

    fn tell(&self, lie: Lie) {
        *self.lie.lock().unwrap() = lie;
    }
}

/// Answers one request, and closes.
fn answer(mut stream: TcpStream, daemon: SocketAddr, lie: &Mutex<Lie>) -> std::io::Result<()> {
    let mut request = BufReader::new(stream.try_clone()?);
    let (mut head, mut length) = (String::new(), 0);
    request.read_line(&mut head)?;
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    loop {
        let mut header = String::new();
        request.read_line(&mut header)?;
        let (name, value) = header.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            // The daemon knows its own page by its address.
            "host" => header = format!("host: {daemon}\r\n"),
            "origin" => header = format!("origin: http://{daemon}\r\n"),
            "connection" => continue,
            "content-length" => length = value.trim().parse().unwrap_or_default(),
            _ => {}
        }
        if header.trim().is_empty() {
            break;
        }
        head += &header;
    }
    let mut body = vec![0; length];
    request.read_exact(&mut body)?;

    let lie = lie.lock().unwrap().clone();
    let file = path.strip_prefix(LOG);
    if let (Lie::Instead { folder, checkpoint }, Some(file)) = (&lie, file) {
        let found = if file == "checkpoint" { std::fs::read(checkpoint).ok() } else { published(folder, file) };
        let status = if found.is_some() { "200 OK" } else { "404 Not Found" };
        let found = found.unwrap_or_default();
        write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", found.len())?;
        return stream.write_all(&found);
    }

    let mut there = TcpStream::connect(daemon)?;
    write!(there, "{head}connection: close\r\n\r\n")?;
    there.write_all(&body)?;
    let mut answer = Vec::new();
    there.read_to_end(&mut answer)?;
    if let Lie::Flip { path, at, bit } = &lie
        && file == Some(path)
    {
        let begin = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        answer[begin + at] ^= bit;
    }
    if let Lie::Status { name, value } = &lie
        && path == "/audit/status"
    {
        let begin = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        let mut status: Value = serde_json::from_slice(&answer[begin..])?;
        status[*name] = json!(value);
        let body = status.to_string();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
        return write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len());
    }
    stream.write_all(&answer)
}

/// A tile of a copy of a log: a partial one may be the beginning of a wider one.
fn published(folder: &Path, path: &str) -> Option<Vec<u8>> {
    let tile = TilePath::parse(path)?;
    let wider = |width| std::fs::read(folder.join(TilePath { width, ..tile }.path())).ok();
    let mut found = (tile.width..=FULL_WIDTH).find_map(wider)?;
    let width = usize::from(tile.width);
    let length = match tile.kind {
        TileKind::Entries => whole_entries(&found).0[..width].iter().map(|entry| entry.len() + 2).sum(),
        TileKind::Hashes(_) => width * 32,
    };
    found.truncate(length);
    Some(found)
}

/// A first look at the log with a key.
fn look(browser: &Browser, liar: &Liar, key: &str) {
    browser.go("about:blank");
    browser.go(&format!("http://{}/#audit", liar.address));
    browser.wait_for("document.querySelector('#caller').innerText");
    // A sign-in outlives the page.
    if browser.value("document.querySelector('#use-key').hidden") == json!(false) {
        browser.click("#use-key");
        browser.type_into("#key-field", key);
        browser.click("#key-form button.primary");
    }
    browser.wait_for("document.querySelector('#audit details')");
}

/// Lets the page verify every record, and returns its result.
fn verify(browser: &Browser) -> String {
    browser.value("document.querySelectorAll('#audit [role=status] .notice').forEach((one) => one.remove())");
    browser.click("#audit [data-action=verify]");
    browser.wait_for("document.querySelector('#audit [role=status] .notice')");
    browser.text("#audit [role=status] .notice")
}

/// The badge of the newest head, and the text about it.
fn head(browser: &Browser) -> String {
    browser.wait_for("document.querySelector('#audit .card .badge')");
    browser.text("#audit .card:has(.badge)")
}

#[test]
fn the_page_verifies_a_log_and_names_the_file_in_which_a_bit_was_changed() {
    let root = TestRoot::closed().models(&["add_sub"]).set("audit.calls=[\"add_sub\"]");
    let auditor = key(&root, &["auditor-1", "--role", "auditor"]);
    let daemon = root.start();
    // The sign-in is a record, too.
    let (liar, browser) = (Liar::start(daemon.address), Browser::start());
    look(&browser, &liar, &auditor);
    let tensor = |name| json!({"name": name, "datatype": "FP32", "shape": [1, 16], "data": vec![1.0; 16]});
    let request = json!({"inputs": [tensor("INPUT0"), tensor("INPUT1")]});
    let mut client = daemon.client();
    for _ in 0..2000 {
        assert_eq!(client.post_json("/v2/models/add_sub/infer", &request).status, 200);
    }
    let mut signed = 0;
    wait_until("all records are signed", || {
        let status = daemon.client().get("/audit/status").json();
        let checkpoint = status["checkpoint"].as_str().unwrap_or_default();
        signed = checkpoint.lines().nth(1).and_then(|size| size.parse().ok()).unwrap_or(0);
        signed > 2000 && status["size"] == signed
    });

    browser.value("location.reload()");
    browser.wait_for("document.querySelectorAll('#audit tbody tr').length === 25");
    assert!(head(&browser).contains("head verified"), "{}", head(&browser));
    assert_eq!(browser.text("#audit tbody th"), (signed - 1).to_string());
    let told = verify(&browser);
    assert!(told.starts_with("Whole.") && told.contains(&format!("{},{:03}", signed / 1000, signed % 1000)), "{told}");
    assert_eq!(browser.complaints(), [""; 0]);

    // A filter finds old records.
    browser.type_into("#audit input[name=event]", "model_loaded\n");
    browser.value("document.activeElement.blur()");
    browser.wait_for("document.querySelectorAll('#audit tbody tr').length === 1");
    let found = browser.text("#audit tbody");
    assert!(found.contains("model_loaded") && found.contains("add_sub") && found.contains("local"), "{found}");

    // The same as from the command line, on the same log.
    let verified = |root: &TestRoot| {
        let output = root.command(&["audit", "verify", "--json"]).output().unwrap();
        (output.status.code(), serde_json::from_slice::<Value>(&output.stdout).unwrap())
    };
    let root_in_page = browser.text("#audit .card:has(.badge) > p code");
    let (code, report) = verified(&daemon.root);
    assert_eq!((code, report["logs"][0]["root"].as_str()), (Some(0), Some(root_in_page.as_str())), "{report}");

    let (last, width, above) = (signed / 256, signed % 256, format!("tile/1/000.p/{}", signed / 256));
    assert_ne!(width, 0, "a partial tile at the end");
    let bundle = std::fs::read(daemon.root.folder.path().join("audit/logs/1/tile/entries/003")).unwrap();
    let first = 2 + whole_entries(&bundle).0[0].len();
    let note = std::fs::read(daemon.root.folder.path().join("audit/logs/1/checkpoint")).unwrap();
    let signature = note.len() - 30;
    let partial = format!("tile/0/{last:03}.p/{width}");
    let cases = [
        ("tile/entries/003", first + 40, 1, "Record 769 (tile/entries/003) is not what was signed.".to_owned()),
        ("tile/entries/003", 0, 2, "Record 768 (tile/entries/003) is not what was signed".to_owned()),
        ("tile/0/002", 40, 128, "Hash 1 in tile/0/002 was changed.".to_owned()),
        (&above, 65, 4, format!("Hash 2 in {above} was changed.")),
        (&partial, 5, 16, format!("Hash 0 in {partial} was changed.")),
        // A digit of the number of records, and the signature.
        ("checkpoint", note.iter().position(|byte| *byte == b'\n').unwrap() + 1, 1, "was changed.".to_owned()),
        ("checkpoint", signature, 1, "The checkpoint is refused".to_owned()),
    ];
    for (path, at, bit, named) in &cases {
        liar.tell(Lie::Flip { path: (*path).to_owned(), at: *at, bit: *bit });
        look(&browser, &liar, &auditor);
        let told = if *path == "checkpoint" { head(&browser) } else { head(&browser) + &verify(&browser) };
        assert!(told.contains(named) && !told.contains("Whole"), "{path} {at}: {told}");
        assert!(told.to_lowercase().contains("refused"), "{path} {at}: {told}");
    }

    // The command line refuses the same bits on the disk.
    let root = daemon.kill();
    for (path, at, bit, _) in cases {
        let file = root.folder.path().join("audit/logs/1").join(path.split(".p/").next().unwrap());
        let whole = std::fs::read(&file).unwrap();
        let mut changed = whole.clone();
        changed[at] ^= bit;
        write(&file, &changed);
        let (code, report) = verified(&root);
        // On the box, a bundle that is torn by a wrong length counts as missing.
        let expected = if at == 0 { 3 } else { 5 };
        assert_eq!(code, Some(expected), "{path} {at}: {report}");
        write(&file, &whole);
    }
    assert_eq!(verified(&root).0, Some(0));
}

#[test]
fn a_history_that_is_not_the_one_seen_before_or_not_that_of_the_pasted_key_is_refused() {
    let (attacked, daemon, browser) = (Attacked::new(), TestRoot::new().start(), Browser::start());
    let liar = Liar::start(daemon.address);
    let folder = |name: &str| attacked.folder.path().join(name);
    let instead = |name: &str| Lie::Instead { folder: folder(name), checkpoint: folder(name).join("checkpoint") };
    liar.tell(Lie::Instead { folder: attacked.whole.clone(), checkpoint: attacked.earlier.clone() });
    browser.go(&format!("http://{}/#audit", liar.address));
    // The box names another key than that of this log.
    assert!(head(&browser).contains("it is not signed by this key"), "{}", head(&browser));

    browser.click("#audit details summary");
    browser.type_into("#audit input[name=key]", "ledge.audit/box-1+00000000+AAAA\n");
    browser.wait_for(
        "document.querySelector('#audit details > .reason[role=alert]').innerText.includes('not a verifier key')",
    );
    browser.value("document.querySelector('#audit input[name=key]').value = ''");
    browser.type_into("#audit input[name=key]", &format!("{}\n", attacked.written.key.verifier_key()));
    browser.wait_for("document.querySelector('#audit .badge.ok')");
    assert!(head(&browser).contains("800 records") && head(&browser).contains("pasted by you"), "{}", head(&browser));
    assert!(head(&browser).contains("The box names another"), "{}", head(&browser));

    liar.tell(instead("whole"));
    browser.wait_for("document.querySelector('#audit .card:has(.badge)').innerText.includes('begin with the 800')");
    assert!(verify(&browser).starts_with("Whole."), "{}", verify(&browser));

    // Changed records, without the hashes that would say so: the box removes the records, too.
    let changed = folder("without-hashes");
    copy(&attacked.whole, &changed);
    let bundle = changed.join("tile/entries/000");
    let mut bytes = std::fs::read(&bundle).unwrap();
    bytes[40] ^= 1;
    write(&bundle, &bytes);
    std::fs::remove_file(changed.join("tile/0/000")).unwrap();

    // These have the checkpoint of the log itself.
    for (attack, named) in [
        ("without-hashes", "tile/0/000 are not there. What is below them is not what was signed."),
        ("flipped-bit", "Record 256 (tile/entries/001) is not what was signed."),
        ("gap", "Records 512 to 767 are not there (tile/entries/002)."),
        ("rewritten-history", "are not those that were signed, nor is what is below them"),
    ] {
        liar.tell(instead(attack));
        let told = verify(&browser);
        assert!(told.starts_with("Refused.") && told.contains(named), "{attack}: {told}");
    }
    // These have another.
    for (attack, named) in [
        ("cut-tail", "Its end was cut off: 1000 records were signed before, and now 700."),
        ("forged-signature", "it is not signed by this key"),
        ("forked-head", "There are two histories of this log: its first 1000 records"),
    ] {
        liar.tell(instead(attack));
        browser.wait_for(&format!(
            "document.querySelector('#audit .card:has(.badge)').innerText.includes({})",
            json!(named)
        ));
        assert!(head(&browser).contains("refused"), "{attack}: {}", head(&browser));
        assert!(!browser.text("#audit").contains("Each of them is in the signed log"), "{attack}");
        // Each of these logs agrees with itself.
        if attack != "forged-signature" {
            let told = verify(&browser);
            assert!(told.starts_with("Refused.") && told.contains(named), "{attack}: {told}");
        }
    }
    liar.tell(instead("whole"));
    browser.wait_for("document.querySelector('#audit .badge.ok')");
}

#[test]
fn a_box_that_names_another_key_or_a_log_of_a_lower_number_than_before_is_refused() {
    let (daemon, browser) = (TestRoot::new().start(), Browser::start());
    let liar = Liar::start(daemon.address);
    let says = |text: &str| {
        let card = "document.querySelector('#audit .card:has(.badge)')";
        browser.wait_for(&format!("{card}?.innerText.includes({})", json!(text)));
    };
    let lie = |name, value: &str| liar.tell(Lie::Status { name, value: value.to_owned() });
    browser.go(&format!("http://{}/#audit", liar.address));
    says("head verified");

    lie("verifier_key", AuditBox::new().key.verifier_key());
    says("The box names another key than before.");
    liar.tell(Lie::Nothing);
    says("head verified");

    let status = daemon.client().get("/audit/status").json();
    let name = status["origin"].as_str().unwrap().strip_suffix("/1").unwrap();
    lie("origin", &format!("{name}/2"));
    says("There is no checkpoint");
    liar.tell(Lie::Nothing);
    says("The log of this box was number 2, and now it is number 1");
    assert!(verify(&browser).starts_with("Refused."));
}

#[test]
fn what_left_the_box_is_a_table() {
    let root =
        TestRoot::closed().set("egress.allow=[{host=\"updates.example:443\",region=\"eu\",send=[\"requests\"]}]");
    let (daemon, browser) = (root.start(), Browser::start());
    browser.go(&format!("http://{}/#audit", daemon.address));
    browser.wait_for("document.querySelector('#audit .times')");
    assert!(browser.text("#audit .error").contains("role auditor or admin"), "{}", browser.text("#audit .error"));
    browser.click("label[for=audit-egress]");
    browser.wait_for("document.querySelector('#audit tbody tr')");
    let table = browser.text("#audit table");
    assert!(
        table.contains("updates.example:443") && table.contains("requests") && table.contains("nothing"),
        "{table}"
    );
    let contents = browser.value("document.querySelectorAll('#audit .card details').length");
    assert_eq!(contents, json!(ledge::egress::EgressContent::ALL.len()));
    assert_eq!(browser.complaints(), [""; 0]);
}
