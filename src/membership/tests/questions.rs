//! Tests of questions and of their answers.

use std::time::{Duration, Instant};

use ledge_egress::EgressConfig;
use ledge_part::check::{Finding, FindingMeasure};
use proptest::prelude::*;
use rcgen::SigningKey as _;
use serde_json::{Value, json};

use super::{TestAuthority, at, device, made, then};
use crate::certificates::CertificateChain;
use crate::config::MembershipConfig;
use crate::diagnosis::{CheckName, answer, checks};
use crate::doctor;
use crate::envelope::{Envelope, signed_bytes};
use crate::folder::{Membership, MembershipFolder, Standing};
use crate::question::{
    AnsweredQuestion, QUESTION_BYTES_MAX, Question, QuestionJudge, QuestionKind, QuestionRefusal as Refusal,
};
use crate::responder::Refusals;
use crate::settings::compose;
use ledge_identity::sealing::Sealer;

const KIND: &str = "application/vnd.ledge.question+json";

/// The file of a question, signed by the certificate of `signer`.
fn file(authority: &TestAuthority, signer: &str, kind: &str, payload: &Value) -> Vec<u8> {
    let (certificate, key) = authority.issue(signer);
    let payload = payload.to_string();
    let envelope = Envelope::sign(kind, payload.as_bytes(), "platform", |bytes| key.sign(bytes)).unwrap();
    let mut envelope = serde_json::to_value(envelope).unwrap();
    envelope["signatures"][0]["certificate"] = json!(certificate);
    serde_json::to_vec(&envelope).unwrap()
}

fn payload(changes: &Value) -> Value {
    let mut payload = json!({
        "version": 1, "box": "box-2", "question": "doctor", "id": "5a".repeat(32),
        "made": "2026-12-02T23:59:00Z", "expires": "2026-12-03T00:14:00Z",
    });
    for (name, value) in changes.as_object().unwrap() {
        payload[name] = value.clone();
    }
    payload
}

/// The judgement of box-2, which answered `answered` last.
fn judged(
    root: &str,
    file: &[u8],
    allowed: &[QuestionKind],
    answered: Option<&AnsweredQuestion>,
    now_ms: u64,
) -> Result<Question, Refusal> {
    QuestionJudge { device: &device("box-2"), ca: root, allowed, answered }.judge(file, now_ms)
}

#[test]
fn a_question_of_the_platform_for_this_box_is_answered_once() {
    let authority = TestAuthority::new();
    let asked = file(&authority, "platform", KIND, &payload(&json!({})));
    let question = judged(&authority.root, &asked, &[QuestionKind::Doctor], None, then()).unwrap();
    assert_eq!(question, Question { id: "5a".repeat(32), kind: QuestionKind::Doctor, made_ms: then() - 60_000 });

    let Question { id, made_ms, .. } = question;
    let last = AnsweredQuestion { id, made_ms, answered_ms: then() };
    let again = |changes| {
        let asked = file(&authority, "platform", KIND, &payload(&changes));
        judged(&authority.root, &asked, &[QuestionKind::Doctor], Some(&last), then())
    };
    assert_eq!(again(json!({})), Err(Refusal::Answered));
    assert_eq!(again(json!({ "id": "b0".repeat(32) })), Err(Refusal::Repeated), "of the same time");
    assert_eq!(again(json!({ "id": "b0".repeat(32), "made": "2026-12-02T23:58:59Z" })), Err(Refusal::Repeated));
    assert!(again(json!({ "id": "b0".repeat(32), "made": "2026-12-02T23:59:01Z" })).is_ok());
}

#[test]
fn a_question_that_is_not_for_this_box_now_is_refused() {
    let authority = TestAuthority::new();
    let said = |changes: Value| {
        let asked = file(&authority, "platform", KIND, &payload(&changes));
        judged(&authority.root, &asked, &[QuestionKind::Doctor], None, then()).unwrap_err()
    };
    assert_eq!(said(json!({ "box": "box-3" })), Refusal::OtherBox);
    assert_eq!(said(json!({ "expires": "2026-12-03T00:00:00Z" })), Refusal::Expired);
    assert_eq!(said(json!({ "made": "2026-12-02T22:59:59Z", "expires": "2030-01-01T00:00:00Z" })), Refusal::Expired);
    assert_eq!(said(json!({ "made": "2026-12-03T00:05:01Z" })), Refusal::Early);
    assert_eq!(said(json!({ "question": "logs" })), Refusal::Unknown);
    assert_eq!(said(json!({ "version": 2 })), Refusal::Unreadable);
    assert_eq!(said(json!({ "id": "../../answers/x" })), Refusal::Unreadable);
    assert_eq!(said(json!({ "made": "now" })), Refusal::Unreadable);
    assert_eq!(said(json!({ "run": "rm" })), Refusal::Unreadable);
    let asked = file(&authority, "platform", KIND, &payload(&json!({})));
    assert_eq!(judged(&authority.root, &asked, &[], None, then()), Err(Refusal::NotAllowed));
}

#[test]
fn only_the_platforms_own_certificate_signs_questions() {
    let authority = TestAuthority::new();
    let judge = |file: &[u8], now_ms| judged(&authority.root, file, &[QuestionKind::Doctor], None, now_ms);
    let of_box = file(&authority, "box-1", KIND, &payload(&json!({})));
    assert_eq!(judge(&of_box, then()), Err(Refusal::NotSigned));
    let of_another = file(&TestAuthority::new(), "platform", KIND, &payload(&json!({})));
    assert_eq!(judge(&of_another, then()), Err(Refusal::NotSigned));
    // A join file is signed by the same key.
    let of_another_kind = file(&authority, "platform", "application/vnd.ledge.join-file+json", &payload(&json!({})));
    assert_eq!(judge(&of_another_kind, then()), Err(Refusal::Unreadable));

    let good = file(&authority, "platform", KIND, &payload(&json!({})));
    let mut unsigned: Value = serde_json::from_slice(&good).unwrap();
    unsigned["signatures"][0].as_object_mut().unwrap().remove("certificate");
    assert_eq!(judge(&serde_json::to_vec(&unsigned).unwrap(), then()), Err(Refusal::NotSigned));
    assert_eq!(judge(&[good, vec![b' '; QUESTION_BYTES_MAX]].concat(), then()), Err(Refusal::Unreadable));
}

proptest! {
    #[test]
    fn a_damaged_question_is_refused_or_the_same(position in 0..1032_usize, bit in 0..8_u8) {
        let mut damaged = include_bytes!("../../../tests/data/membership/question.json").to_vec();
        let root = include_str!("../../../tests/data/membership/question-ca.pem");
        damaged[position] ^= 1 << bit;
        if let Ok(question) = judged(root, &damaged, &[QuestionKind::Doctor], None, then()) {
            prop_assert_eq!(question.id, "5a".repeat(32));
        }
    }
}

#[test]
fn the_question_that_was_answered_last_is_known_after_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let folder = || MembershipFolder::new(state.path(), Sealer::none());
    assert_eq!(folder().answered().unwrap(), None);
    let answered = AnsweredQuestion { id: "5a".repeat(32), made_ms: 1, answered_ms: 2 };
    folder().save_answered(&answered).unwrap();
    assert_eq!(folder().answered().unwrap(), Some(answered));
    std::fs::File::create(state.path().join("question.json")).unwrap();
    assert!(folder().answered().is_err(), "a damaged file is not taken for a box that answered nothing");
}

#[test]
fn a_refused_question_is_reported_once_and_many_are_not_reported_at_all() {
    let (mut refusals, now) = (Refusals::default(), Instant::now());
    assert!(refusals.is_new(b"a", now) && !refusals.is_new(b"a", now));
    let reported = (0..100_u8).filter(|number| refusals.is_new(&[*number], now)).count();
    assert_eq!(reported, 9);
    assert!(refusals.is_new(b"b", now + Duration::from_hours(1)));
}

#[test]
fn an_answer_has_no_text_of_a_finding_and_no_name_that_a_person_chose() {
    let findings = [
        Finding::fail("camera Anna", "rtsp://anna:secret@10.0.0.7/door cannot be reached", "look at /home/anna"),
        Finding::fail("camera Back door", "no picture", "check it"),
        Finding::ok("camera yard", "a picture"),
        Finding::warn("state", "/srv/anna: 1 GiB free", "free some").measured(FindingMeasure::FreeBytes(1 << 30)),
        Finding::info("made up by anna", "x"),
        Finding::ok("tls", "anna.example").measured(FindingMeasure::SecondsLeft(86_400)),
    ];
    let (certificate, key) = TestAuthority::new().issue("box-2");
    let question = Question { id: "5a".repeat(32), kind: QuestionKind::Doctor, made_ms: then() };
    let sent = answer(&question, &device("box-2"), &findings, (&key, "7f"), then()).unwrap();
    let envelope = Envelope::read(&sent).unwrap();
    let payload = envelope.payload().unwrap();
    let chain = CertificateChain::from_pem(certificate.as_bytes()).unwrap();
    let signature = &envelope.signatures[0];
    chain.verify_signature(&signed_bytes(&envelope.payload_type, &payload), &signature.bytes().unwrap()).unwrap();
    assert_eq!(signature.keyid, "7f");

    let read: Value = serde_json::from_slice(&payload).unwrap();
    assert_eq!((&read["id"], &read["at"]), (&json!("5a".repeat(32)), &json!("2026-12-03T00:00:00Z")));
    let expected = json!([
        {"check": "state", "level": "warning", "count": 1, "free_bytes": 1 << 30},
        {"check": "tls", "level": "ok", "count": 1, "seconds_left": 86_400},
        {"check": "camera", "level": "ok", "count": 1},
        {"check": "camera", "level": "failure", "count": 2},
        {"check": "other", "level": "ok", "count": 1},
    ]);
    assert_eq!(read["checks"], expected);
    let text = String::from_utf8(payload).unwrap().to_lowercase();
    for word in ["anna", "door", "rtsp", "10.0.0.7", "srv", "example"] {
        assert!(!text.contains(word), "{word} in {text}");
    }
}

#[test]
fn the_longest_answer_is_taken_by_the_web_server_of_the_platform() {
    let names = CheckName::BEGINNINGS.iter().map(|(beginning, _)| format!("{beginning}x"));
    let names: Vec<_> = names.chain(CheckName::BEGINNINGS.iter().map(|(name, _)| (*name).to_owned())).collect();
    let findings = names.iter().flat_map(|name| {
        let measured = |finding: Finding| finding.measured(FindingMeasure::FreeBytes(u64::MAX));
        [Finding::ok(name, ""), Finding::warn(name, "", ""), Finding::fail(name, "", "")].map(measured)
    });
    let (_, key) = TestAuthority::new().issue("box-2");
    let question = Question { id: "5a".repeat(32), kind: QuestionKind::Doctor, made_ms: then() };
    let findings: Vec<_> = findings.collect();
    let sent = answer(&question, &device("box-2"), &findings, (&key, "7f"), then()).unwrap();
    assert!(checks(&findings).len() > 100 && sent.len() < 16 << 10, "{} bytes", sent.len());
}

#[test]
fn a_join_file_cannot_allow_questions() {
    let authority = TestAuthority::new();
    let file = authority.join_file("platform", &json!({ "settings": "[membership]\nquestions = [\"doctor\"]" }));
    let invitation = crate::join_file::JoinFile::open(&file, then()).unwrap().invitation;
    let folder = MembershipFolder::new("/m".as_ref(), Sealer::none());
    let refused = compose(&invitation, &device("box-2"), &folder, false, |key| key != "membership.questions");
    assert!(refused.unwrap_err().to_string().contains("membership.questions"));
    let without = compose(&made().invitation, &device("box-2"), &folder, false, |_| true).unwrap();
    assert!(!without.contains("questions") && !without.contains("diagnoses"), "{without}");
}

#[test]
fn the_doctor_says_that_answers_cannot_leave() {
    let state = tempfile::tempdir().unwrap();
    let membership = Membership {
        version: 1,
        platform: "example".to_owned(),
        device: device("box-2"),
        join: "https://platform.example/join/".parse().unwrap(),
        fingerprint: String::new(),
        standing: Standing::Refused { reason: String::new() },
    };
    MembershipFolder::new(state.path(), Sealer::none()).save(&membership).unwrap();
    let said = |questions, send: &str| {
        let config = MembershipConfig { path: state.path().to_owned(), questions, ..MembershipConfig::default() };
        let allow = format!("[[allow]]\nhost = 'platform.example:443'\nregion = 'eu'\nsend = [{send}]");
        let egress: EgressConfig = toml::from_str(&allow).unwrap();
        doctor::checks(&config, &egress).iter().any(|finding| finding.detail.contains("\"diagnoses\""))
    };
    assert!(said(vec![QuestionKind::Doctor], "'certificates'"));
    assert!(!said(vec![QuestionKind::Doctor], "'certificates', 'diagnoses'") && !said(Vec::new(), ""));
}

#[test]
fn the_time_of_the_stored_question_is_the_one_at_which_it_is_tried() {
    assert_eq!(then(), at("2026-12-03T00:00:00Z"));
    assert!(crate::fuzz_question(include_bytes!("../../../tests/data/membership/question.json")));
}
