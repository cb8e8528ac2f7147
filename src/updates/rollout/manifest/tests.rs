use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn full() -> Value {
    json!({
        "schema": 1, "fleet": "default", "published": "2026-11-20T00:00:00Z",
        "rollouts": [{
            "id": "r-0042", "target": "models/minilm/2/model.onnx", "start": "2026-11-20T00:00:00Z",
            "waves": [{"seed_below": 20, "after_s": 3600}, {"seed_below": 2048, "after_s": 518_400}],
            "paused": false, "groups": ["kitchen"], "devices": ["box-1"],
            "window": {"timezone": "Asia/Dubai", "days": ["mon", "tue"], "from": "01:00", "to": "05:00"},
            "gate": {"golden_min": 0.9, "agreement_min": 0.95, "p95_ratio_max": 1.25, "error_rate_max": 0.01,
                "memory_ratio_max": 1.5, "psi_max": 0.25},
            "shadow": {"share": 0.1, "min_s": 0, "min_requests": 100, "max_s": 3600, "quiet": "pass"},
            "canary": {"share": 0.1, "quiet": "roll_back"}, "soak": {"max_s": 600},
            "max_attempts": 5, "byte_budget": 100_000_000, "allow_downgrade": false, "requires_ledge": "0.1.0",
        }],
        "pins": {"box-7": {"models/minilm": 1}},
        "revoked": ["models/minilm/1"], "minimum": {"models/minilm": 2},
    })
}

fn parse(value: &Value) -> Result<RolloutManifest, ManifestError> {
    RolloutManifest::parse(&serde_json::to_vec(value).unwrap())
}

/// Returns the message for the full manifest with the value at `pointer` replaced.
fn wrong(pointer: &str, value: Value) -> String {
    let mut manifest = full();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match manifest.pointer_mut(parent).unwrap() {
        Value::Object(object) => _ = object.insert(key.to_owned(), value),
        Value::Array(array) => array[key.parse::<usize>().unwrap()] = value,
        _ => panic!("{pointer}"),
    }
    parse(&manifest).unwrap_err().to_string()
}

#[test]
fn everything_that_a_manifest_says_is_read() {
    let manifest = parse(&full()).unwrap();
    let rollout = &manifest.rollouts[0];
    assert_eq!(rollout.plan.target.to_string(), "models/minilm/2/model.onnx");
    assert_eq!(rollout.waves[0], Wave { seed_below: 20, after_s: 3600 });
    assert_eq!(rollout.start_ms, manifest.published_ms);
    assert_eq!(rollout.window.as_ref().unwrap().to_string(), "01:00 to 05:00 Asia/Dubai");
    assert_eq!(rollout.requires_ledge.unwrap().to_string(), "0.1.0");
    let subject: Artifact = "models/minilm".parse().unwrap();
    assert_eq!(manifest.minimum[&subject].get(), 2);
    assert_eq!(manifest.revoked[&subject].len(), 1);
    assert_eq!(manifest.pins[&"box-7".parse().unwrap()][&subject].get(), 1);
    assert_eq!(manifest.subjects().len(), 1);
}

#[test]
fn a_rollout_needs_little() {
    let manifest = parse(&json!({
        "schema": 1, "fleet": "f", "published": "2026-11-20T00:00:00Z",
        "rollouts": [{"id": "r", "target": "models/m/1/model.onnx", "start": "2026-11-20T00:00:00Z"}],
    }));
    let rollout = &manifest.unwrap().rollouts[0];
    assert_eq!(rollout.waves, WavePreset::Default.waves());
    assert_eq!((rollout.plan.max_attempts, rollout.paused), (5, false));
}

/// Returns the plan of the full manifest with these fields in place of its gate and stages.
fn guarded(guards: Value) -> RolloutPlan {
    let mut manifest = full();
    let rollout = manifest["rollouts"][0].as_object_mut().unwrap();
    for key in ["gate", "shadow", "canary", "soak"] {
        rollout.remove(key);
    }
    let Value::Object(guards) = guards else { panic!("{guards}") };
    rollout.extend(guards);
    parse(&manifest).unwrap().rollouts.remove(0).plan
}

#[test]
fn a_rollout_that_names_no_gate_has_the_gates_of_the_box() {
    let plan = guarded(json!({}));
    assert_eq!((plan.shadow, plan.canary, plan.soak), (StagePlan::SHADOW, StagePlan::CANARY, StagePlan::SOAK));
    let gate = plan.gate;
    assert_eq!(gate, RolloutGate::default());
    assert!(gate.p95_ratio_max.is_some() && gate.memory_ratio_max.is_some() && gate.error_rate_max.is_some());
    assert!(plan.shadow.share > 0.0 && plan.soak.min_s > 0);
    // A field that is given leaves the defaults of the others.
    let plan = guarded(json!({"gate": {"golden_min": 0.9}, "shadow": {"share": 0.5}, "canary": {"share": 0.2}}));
    assert_eq!(plan.gate, RolloutGate { golden_min: Some(0.9), ..RolloutGate::default() });
    assert_eq!(
        (plan.shadow, plan.canary),
        (StagePlan { share: 0.5, ..StagePlan::SHADOW }, StagePlan { share: 0.2, ..StagePlan::CANARY })
    );
}

#[test]
fn a_gate_is_off_where_the_manifest_says_so() {
    let off = json!({"p95_ratio_max": null, "error_rate_max": null, "memory_ratio_max": null});
    let plan = guarded(json!({"gate": off, "shadow": {"share": 0}, "soak": {"min_s": 0, "min_requests": 0}}));
    assert_eq!((plan.gate, plan.shadow.share, plan.soak.min_s, plan.soak.min_requests), (RolloutGate::OPEN, 0.0, 0, 0));
}

#[test]
fn one_bound_of_a_stage_moves_the_other_with_it() {
    for (said, bounds) in [
        (json!({"min_s": 172_800}), (172_800, 172_800)),
        (json!({"max_s": 300}), (300, 300)),
        (json!({"min_s": 60}), (60, 3_600)),
        (json!({"min_s": 0, "max_s": 86_400}), (0, 86_400)),
    ] {
        let soak = guarded(json!({"soak": said})).soak;
        assert_eq!((soak.min_s, soak.max_s), bounds);
    }
}

#[test]
fn an_unknown_field_is_refused_wherever_it_is() {
    for pointer in
        ["/new", "/rollouts/0/new", "/rollouts/0/gate/new", "/rollouts/0/canary/new", "/rollouts/0/window/new"]
    {
        assert!(wrong(pointer, json!(1)).contains("`new`"), "{pointer}: {}", wrong(pointer, json!(1)));
    }
    // A list of waves, or a name: serde reports only that it is neither.
    assert!(wrong("/rollouts/0/waves/0", json!({"seed_below": 1, "after_s": 1, "new": 1})).contains("rollouts[0]"));
    let twice = br#"{"schema": 1, "schema": 1, "fleet": "f", "published": "", "rollouts": []}"#;
    let twice = RolloutManifest::parse(twice).unwrap_err();
    assert!(matches!(&twice, ManifestError::Form { reason } if reason.contains("`schema`")), "{twice}");
}

#[test]
fn what_cannot_be_is_told() {
    for (pointer, value, told) in [
        ("/schema", json!(2), "schema 2 is not known"),
        ("/published", json!("yesterday"), "published \"yesterday\" is not a time"),
        ("/rollouts/0/start", json!("1969-01-01T00:00:00Z"), "start \"1969-01-01T00:00:00Z\" is not a time"),
        ("/rollouts/0/waves", json!("slow"), "there are default, accelerated, ohno, all"),
        ("/rollouts/0/waves/0/seed_below", json!(2049), "seed_below 2049 is not from 1 to 2048"),
        ("/rollouts/0/target", json!("models/../2/x"), "starts with a dot"),
        ("/rollouts/0/window/from", json!("25:00"), "window.from is not a time"),
        ("/rollouts/0/canary/share", json!(1.5), "canary.share is not from 0 to 1"),
        ("/rollouts/0/shadow/min_s", json!(1_000_000), "shadow.min_s 1000000 is more than max_s, 3600"),
        ("/rollouts/0/gate/golden_min", json!(-0.1), "gate.golden_min is not from 0 to 1"),
        ("/rollouts/0/gate/p95_ratio_max", json!(0), "gate.p95_ratio_max is not more than 0"),
        ("/rollouts/0/max_attempts", json!(0), "max_attempts 0 is not from 1 to 1000"),
        ("/rollouts/0/requires_ledge", json!("1.x.0"), "requires_ledge \"1.x.0\" is not a version"),
        ("/revoked/0", json!("models/minilm"), "\"models/minilm\" is not of the form"),
    ] {
        let message = wrong(pointer, value);
        assert!(message.contains(told), "{pointer}: {message}");
    }
}

#[test]
fn every_mistake_is_told_at_once() {
    let mut manifest = full();
    manifest["published"] = json!("never");
    manifest["rollouts"][0]["max_attempts"] = json!(0);
    manifest["rollouts"][0]["window"]["from"] = json!("x");
    let second = json!({"id": "r-0042", "target": "models/m/1/x", "start": "x"});
    manifest["rollouts"].as_array_mut().unwrap().extend([second, json!({"id": "r-3"})]);
    let ManifestError::Wrong { mistakes } = parse(&manifest).unwrap_err() else { panic!() };
    assert_eq!(mistakes.len(), 6, "{mistakes:#?}");
    assert!(mistakes.iter().any(|mistake| mistake == "rollout r-0042: another rollout has this id"));
    assert!(mistakes.iter().any(|mistake| mistake.starts_with("rollouts[2]: missing field `target`")));
}

#[test]
fn a_manifest_is_of_bounded_size() {
    let rollout = full()["rollouts"][0].clone();
    let mut manifest = full();
    manifest["rollouts"] = (0..300)
        .map(|number| {
            let mut rollout = rollout.clone();
            rollout["id"] = json!(format!("r-{number}"));
            rollout
        })
        .collect();
    let many = parse(&manifest).unwrap_err().to_string();
    assert!(many.contains("300") && many.contains("256"), "{many}");
    let large = vec![b' '; 2 << 20];
    assert_eq!(RolloutManifest::parse(&large), Err(ManifestError::TooLarge { bytes: 2 << 20 }));
}

#[test]
fn versions_of_ledge_are_compared_by_their_numbers() {
    let version = |text| LedgeVersion::parse(text).unwrap();
    assert!(version("0.10.0") > version("0.9.9"));
    for bad in ["", "1", "1.2", "1.2.3.4", "1.2.-3", "1.2.+3", "1..3", "1.2.99999999999"] {
        assert_eq!(LedgeVersion::parse(bad), None, "{bad}");
    }
    LedgeVersion::parse(env!("CARGO_PKG_VERSION")).unwrap();
}

proptest! {
    #[test]
    fn reading_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = RolloutManifest::parse(&bytes);
    }

    #[test]
    fn a_manifest_with_changed_bytes_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = serde_json::to_vec(&full()).unwrap();
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = RolloutManifest::parse(&bytes);
    }
}
