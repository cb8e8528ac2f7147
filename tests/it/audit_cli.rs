//! `ledge audit` as auditors and their scripts use it.

use std::io::{BufRead as _, BufReader};
use std::process::{Output, Stdio};

use ledge::audit_event::AuditEvent;
use ledge::audit_event::inference::CallOutcome;
use ledge::principal::Principal;
use serde_json::Value;

use crate::audit_log::{Attacked, AuditBox, BEGIN_MS};
use crate::daemon::{TestRoot, write};
use crate::hostile;

fn run(root: &TestRoot, arguments: &[&str]) -> Output {
    root.command(&[&["audit"], arguments].concat()).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn lines(output: &Output) -> Vec<u64> {
    assert!(output.status.success(), "{}", errors(output));
    let seq = |line: &str| serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap();
    text(output).lines().map(seq).collect()
}

#[test]
fn each_attack_on_a_copy_has_its_exit_code_and_the_whole_one_has_none() {
    let attacked = Attacked::new();
    let (root, key) = (&attacked.written.root, attacked.written.key.verifier_key());
    let earlier = attacked.earlier.display().to_string();
    let whole = attacked.whole.display().to_string();
    let verified = run(root, &["verify", &whole, "--key", key, "--from", &earlier]);
    assert_eq!(verified.status.code(), Some(0), "{}{}", text(&verified), errors(&verified));
    let told = text(&verified);
    for part in
        ["ledge.audit/box-1/1", "1000 records, root ", key, "stopped 1000", "of 800 records", "never written to it"]
    {
        assert!(told.contains(part), "{part} in {told}");
    }
    for attack in &attacked.attacks {
        let folder = attack.folder.display().to_string();
        let verified = run(root, &["verify", &folder, "--key", key, "--from", &earlier, "--json"]);
        let (name, told) = (attack.name, text(&verified));
        assert_eq!(verified.status.code(), Some(attack.exit), "{name}: {told}{}", errors(&verified));
        let report: Value = serde_json::from_str(&told).unwrap();
        let verdict = match attack.exit {
            3 => "gap",
            4 => "fork",
            _ => "tampered",
        };
        assert_eq!(report["verdict"], verdict, "{name}: {told}");
    }
    // Without an earlier checkpoint the log looks whole, but shorter.
    let cut = attacked.folder.path().join("cut-tail").display().to_string();
    assert_eq!(run(root, &["verify", &cut, "--key", key]).status.code(), Some(0));
}

#[test]
fn a_copy_is_not_checked_without_a_key_and_the_box_knows_its_own() {
    let mut written = AuditBox::with(300);
    written.append(3);
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("box-1");
    written.copy_to(&copy.join("1"));
    let place = copy.display().to_string();
    let refused = run(&written.root, &["verify", &place]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(errors(&refused).contains("`ledge audit key`"), "{}", errors(&refused));

    let key = run(&written.root, &["key"]);
    assert_eq!(text(&key).trim(), written.key.verifier_key());
    let file = folder.path().join("box-1.vkey");
    write(&file, &key.stdout);
    let verified = run(&written.root, &["verify", &place, "--key", &file.display().to_string()]);
    assert_eq!(verified.status.code(), Some(0), "{}", errors(&verified));

    let own = run(&written.root, &["verify"]);
    assert_eq!(own.status.code(), Some(0), "{}{}", text(&own), errors(&own));
    let report: Value = serde_json::from_slice(&run(&written.root, &["verify", "--json"]).stdout).unwrap();
    assert_eq!(
        (&report["verdict"], report["logs"].as_array().map(Vec::len)),
        (&Value::from("whole"), Some(1)),
        "{report}"
    );

    let nothing = run(&TestRoot::new().set("device.id=\"box-2\""), &["verify"]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(errors(&nothing).contains("no audit log yet"), "{}", errors(&nothing));
}

#[test]
fn a_log_behind_an_address_is_verified_like_a_folder() {
    let attacked = Attacked::new();
    let (root, key) = (&attacked.written.root, attacked.written.key.verifier_key());
    let folder = attacked.folder.path().to_owned();
    let address = hostile::server(move |path, stream| hostile::file(&folder, path, stream));
    let verify = |name: &str| run(root, &["verify", &format!("http://{address}/{name}"), "--key", key]);
    let whole = verify("whole");
    assert_eq!(whole.status.code(), Some(0), "{}{}", text(&whole), errors(&whole));
    assert_eq!(verify("gap").status.code(), Some(3));
    assert_eq!(verify("flipped-bit").status.code(), Some(5));
    let nothing = verify("nowhere");
    assert_eq!(nothing.status.code(), Some(1));
    assert!(errors(&nothing).contains("holds no audit log"), "{}", errors(&nothing));
}

#[test]
fn a_proof_is_checked_with_the_key_alone() {
    let written = AuditBox::with(1000);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("721.tlog-proof");
    let proof = path.display().to_string();
    let proven = run(&written.root, &["prove", "721", "--out", &proof]);
    assert!(proven.status.success(), "{}", errors(&proven));

    let elsewhere = TestRoot::new();
    let key = written.key.verifier_key();
    let checked = run(&elsewhere, &["check", &proof, "--key", key]);
    assert!(checked.status.success(), "{}", errors(&checked));
    assert!(text(&checked).starts_with(r#"{"v":1,"seq":721,"#), "{}", text(&checked));
    assert!(text(&checked).contains("ledge.audit/box-1/1"), "{}", text(&checked));

    let content = std::fs::read_to_string(&path).unwrap();
    for (was, is, exit) in
        [("index 721", "index 720", 5), ("1000\n", "1001\n", 5), ("tlog-proof@v1", "tlog-proof@v2", 1)]
    {
        write(&path, content.replacen(was, is, 1).as_bytes());
        let checked = run(&elsewhere, &["check", &proof, "--key", key]);
        assert_eq!(checked.status.code(), Some(exit), "{is}: {}", errors(&checked));
    }
    let other = AuditBox::with(1);
    write(&path, content.as_bytes());
    assert_eq!(run(&elsewhere, &["check", &proof, "--key", other.key.verifier_key()]).status.code(), Some(5));
    let beyond = run(&written.root, &["prove", "1000"]);
    assert_eq!(beyond.status.code(), Some(1));
    assert!(errors(&beyond).contains("1000"), "{}", errors(&beyond));
}

/// A call on a photograph, by a caller.
fn call(model: &str, input: Option<ledge::audit_event::tag::Tag>) -> AuditEvent {
    let (model, version) = (model.parse().ok(), 1.try_into().ok());
    AuditEvent::Inference { model, version, digest: None, outcome: CallOutcome::Ok, us: 81, input, output: None }
}

#[test]
fn records_are_found_by_what_they_are_about() {
    let mut written = AuditBox::new();
    let (tags, _) = ledge::audit::tags::AuditTagKeys::open(
        &written.audit(),
        30,
        400,
        BEGIN_MS,
        &ledge::identity::sealing::Sealer::none(),
    )
    .unwrap();
    let key = tags.current();
    let caller = |address: &str| Principal::Peer(address.parse().unwrap());
    written.append(300);
    written.write(&caller("10.0.0.7"), Some(&key), call("minilm", Some(key.of_photograph(b"a photograph"))));
    written.write(&caller("10.0.0.8"), Some(&key), call("other", None));
    written.append(298);
    written.sign();
    written.append(5);
    let photograph = written.root.folder.path().join("photograph");
    write(&photograph, b"a photograph");
    let photograph = photograph.display().to_string();
    let show = |arguments: &[&str]| lines(&run(&written.root, &[&["show", "--json"], arguments].concat()));
    assert_eq!(show(&[]), (0..605).collect::<Vec<_>>());
    assert_eq!(show(&["--action", "inference"]), [300, 301]);
    assert_eq!(show(&["--model", "minilm"]), [300]);
    assert_eq!(show(&["--actor", "ip:10.0.0.8"]), [301]);
    assert_eq!(show(&["--input", &photograph]), [300]);
    assert_eq!(show(&["--seq", "255..257"]), [255, 256, 257]);
    assert_eq!(show(&["--seq", "603.."]), [603, 604]);
    let moment = |seq: u64| ledge::clock::rfc3339(BEGIN_MS + 1000 * seq);
    for scan in [&[][..], &["--scan"]] {
        assert_eq!(show(&[&["--since", &moment(511), "--until", &moment(513)], scan].concat()), [511, 512, 513]);
    }
    assert_eq!(lines(&run(&written.root, &["tail", "-n", "3", "--json"])), [602, 603, 604]);
    assert_eq!(lines(&run(&written.root, &["tail", "-n", "3", "--action", "inference", "--json"])), [300, 301]);
    let table = text(&run(&written.root, &["show", "--seq", "299..300"]));
    assert!(table.contains("local") && !table.contains("digest="), "{table}");
    assert!(
        table.contains(&format!("ip {}:", key.period())) && table.contains("model=minilm") && table.contains("us=81"),
        "{table}"
    );
    let wrong = run(&written.root, &["show", "--action", "inferense"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(errors(&wrong).contains("'inference'"), "{}", errors(&wrong));
}

#[test]
fn tail_goes_on_with_what_comes() {
    let mut written = AuditBox::with(254);
    let mut tail = written.root.command(&["audit", "tail", "--follow", "-n", "1", "--json"]);
    let mut tail = tail.stdout(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(tail.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&told.next().unwrap().unwrap()).unwrap()["seq"].as_u64().unwrap();
    assert_eq!(next(), 253);
    // Over the edge of a tile, one by one and together.
    for seq in 254..259 {
        written.append(1);
        assert_eq!(next(), seq);
    }
    written.append(300);
    assert!((259..559).all(|seq| next() == seq));
    tail.kill().unwrap();
    tail.wait().unwrap();
}
