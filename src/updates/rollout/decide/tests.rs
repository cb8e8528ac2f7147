use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const START_MS: u64 = 1_795_132_800_000;
const HOUR_MS: u64 = 3_600_000;

fn manifest(rollouts: Value, rest: Value) -> RolloutManifest {
    let mut manifest = json!({"schema": 1, "fleet": "default", "published": "2026-11-20T00:00:00Z"});
    let object = manifest.as_object_mut().unwrap();
    object.insert("rollouts".into(), rollouts);
    let Value::Object(rest) = rest else { panic!("{rest}") };
    object.extend(rest);
    RolloutManifest::parse(&serde_json::to_vec(&manifest).unwrap()).unwrap()
}

fn rollout(id: &str, version: u64, rest: Value) -> Value {
    let mut rollout = json!({
        "id": id, "target": format!("models/m/{version}/model.onnx"), "start": "2026-11-20T00:00:00Z", "waves": "all",
    });
    let Value::Object(rest) = rest else { panic!("{rest}") };
    rollout.as_object_mut().unwrap().extend(rest);
    rollout
}

fn device(id: &str, group: Option<&str>) -> DeviceIdentity {
    DeviceIdentity { id: id.parse().unwrap(), group: group.map(|group| group.parse().unwrap()), fleet: None }
}

fn subject() -> Artifact {
    "models/m".parse().unwrap()
}

/// Returns the rollout that counts, how far it may go, and the reported reason.
fn for_box(
    manifest: &RolloutManifest,
    device: &DeviceIdentity,
    now_ms: u64,
) -> (Option<(String, RolloutAllowance)>, Option<String>) {
    let mut decision = decide(manifest, device, now_ms, ManifestAuthority::Valid);
    let desired_state = decision.desired_states.remove(&subject()).unwrap();
    let waiting = decision.waiting.remove(&subject());
    (
        desired_state.desired.map(|(plan, allow)| (plan.rollout.to_string(), allow)),
        waiting.map(|waiting| format!("{}: {}", waiting.rollout, waiting.reason)),
    )
}

fn everything(id: &str) -> (Option<(String, RolloutAllowance)>, Option<String>) {
    (Some((id.to_owned(), RolloutAllowance::Everything)), None)
}

#[test]
fn the_last_rollout_whose_wave_has_come_counts() {
    let manifest = manifest(
        json!([
            rollout("r-1", 1, json!({})),
            rollout("r-2", 2, json!({"waves": [{"seed_below": 2048, "after_s": 3600}]})),
            rollout("r-3", 3, json!({"waves": [{"seed_below": 2048, "after_s": 7200}]})),
        ]),
        json!({}),
    );
    let device = device("box-1", None);
    assert_eq!(for_box(&manifest, &device, START_MS), everything("r-1"));
    assert_eq!(for_box(&manifest, &device, START_MS + HOUR_MS), everything("r-2"));
    assert_eq!(for_box(&manifest, &device, START_MS + 2 * HOUR_MS), everything("r-3"));
    let (wanted, waiting) = for_box(&manifest, &device, START_MS - 1);
    assert_eq!(wanted, Some(("r-3".to_owned(), RolloutAllowance::Nothing)));
    assert_eq!(waiting.unwrap(), "r-3: its wave comes at 2026-11-20T02:00:00Z");
}

#[test]
fn a_rollout_is_for_the_groups_and_boxes_that_it_names() {
    let manifest =
        manifest(json!([rollout("r-1", 1, json!({"groups": ["kitchen"], "devices": ["box-1"]}))]), json!({}));
    assert_eq!(for_box(&manifest, &device("box-1", None), START_MS), everything("r-1"));
    assert_eq!(for_box(&manifest, &device("box-2", Some("kitchen")), START_MS), everything("r-1"));
    assert_eq!(for_box(&manifest, &device("box-2", Some("bar")), START_MS), (None, None));
    assert_eq!(for_box(&manifest, &device("box-2", None), START_MS), (None, None));
}

#[test]
fn a_pinned_box_takes_its_version_and_no_other() {
    let rollouts =
        json!([rollout("r-1", 1, json!({"waves": "default", "devices": ["box-9"]})), rollout("r-2", 2, json!({})),]);
    let manifest = manifest(rollouts, json!({"pins": {"box-7": {"models/m": 1}, "box-8": {"models/m": 5}}}));
    assert_eq!(for_box(&manifest, &device("box-1", None), START_MS), everything("r-2"));
    assert_eq!(for_box(&manifest, &device("box-7", None), START_MS), everything("r-1"));
    assert_eq!(for_box(&manifest, &device("box-8", None), START_MS), (None, None));
    let desired_state = desired_states(&manifest, &device("box-7", None), START_MS).remove(&subject()).unwrap();
    assert!(desired_state.desired.unwrap().0.allow_downgrade);
}

#[test]
fn what_is_revoked_or_below_the_minimum_is_not_wanted() {
    let rollouts = json!([rollout("r-1", 1, json!({})), rollout("r-2", 2, json!({})), rollout("r-3", 3, json!({}))]);
    let revoked = manifest(rollouts.clone(), json!({"revoked": ["models/m/3"]}));
    assert_eq!(for_box(&revoked, &device("box-1", None), START_MS), everything("r-2"));
    let minimum = manifest(rollouts, json!({"minimum": {"models/m": 20_261_120, "models/other": 3}}));
    assert_eq!(for_box(&minimum, &device("box-1", None), START_MS), (None, None));
    let desired_states = desired_states(&minimum, &device("box-1", None), START_MS);
    let forbids =
        |subject: &str, version: u64| desired_states[&subject.parse().unwrap()].revokes(version.try_into().unwrap());
    assert!(forbids("models/m", 20_261_119) && !forbids("models/m", 20_261_120));
    assert!(forbids("models/other", 2) && !forbids("models/other", 3));
}

#[test]
fn a_desired_state_names_the_rollouts_for_this_box_whose_place_it_takes() {
    let rollouts = json!([
        rollout("r-1", 1, json!({})),
        rollout("r-2", 2, json!({"devices": ["box-2"]})),
        rollout("r-3", 3, json!({})),
        rollout("r-4", 4, json!({})),
        rollout("r-5", 5, json!({"waves": [{"seed_below": 2048, "after_s": 3600}]})),
    ]);
    // Also those of a version that is revoked now: it may be allowed again.
    let manifest = manifest(rollouts, json!({"revoked": ["models/m/3"]}));
    let desired_state = desired_states(&manifest, &device("box-1", None), START_MS).remove(&subject()).unwrap();
    let named: Vec<_> = desired_state.supersedes.iter().map(ToString::to_string).collect();
    assert_eq!(
        (desired_state.desired.unwrap().0.rollout.as_str(), named),
        ("r-4", vec!["r-1".to_owned(), "r-3".to_owned()])
    );
}

#[test]
fn a_paused_rollout_and_one_that_is_signed_no_more_stand_still() {
    let paused = manifest(json!([rollout("r-1", 1, json!({"paused": true}))]), json!({}));
    let (wanted, waiting) = for_box(&paused, &device("box-1", None), START_MS);
    assert_eq!(
        (wanted, waiting),
        (Some(("r-1".into(), RolloutAllowance::Nothing)), Some("r-1: paused by the platform".into()))
    );

    let manifest = manifest(json!([rollout("r-1", 2, json!({}))]), json!({"revoked": ["models/m/1"]}));
    let decision = decide(&manifest, &device("box-1", None), START_MS, ManifestAuthority::Expired(START_MS - HOUR_MS));
    let desired_state = &decision.desired_states[&subject()];
    assert_eq!(desired_state.desired.as_ref().unwrap().1, RolloutAllowance::Nothing);
    assert!(desired_state.revokes(1.try_into().unwrap()), "what was revoked stays revoked");
    assert!(decision.waiting[&subject()].reason.contains("2026-11-19T23:00:00Z"));
}

#[test]
fn outside_its_window_a_rollout_is_prepared() {
    let window = json!({"window": {"timezone": "UTC", "from": "01:00", "to": "02:00"}});
    let manifest = manifest(json!([rollout("r-1", 1, window)]), json!({}));
    let (wanted, waiting) = for_box(&manifest, &device("box-1", None), START_MS);
    assert_eq!(wanted, Some(("r-1".into(), RolloutAllowance::Prepare)));
    let told = "r-1: outside the maintenance window (01:00 to 02:00 UTC); it opens 2026-11-20T01:00:00Z";
    assert_eq!(waiting.unwrap(), told);
    assert_eq!(for_box(&manifest, &device("box-1", None), START_MS + HOUR_MS), everything("r-1"));
}

#[test]
fn a_box_that_is_too_old_takes_the_rollout_before_and_says_so() {
    let newer = rollout("r-2", 2, json!({"requires_ledge": "99.0.0"}));
    let both = manifest(json!([rollout("r-1", 1, json!({})), newer]), json!({}));
    let (wanted, waiting) = for_box(&both, &device("box-1", None), START_MS);
    assert_eq!(wanted, Some(("r-1".into(), RolloutAllowance::Everything)));
    assert!(waiting.unwrap().starts_with("r-2: needs Ledge 99.0.0, this is "));

    let newer = rollout("r-2", 2, json!({"requires_ledge": "99.0.0"}));
    let (wanted, waiting) = for_box(&manifest(json!([newer]), json!({})), &device("box-1", None), START_MS);
    assert_eq!(wanted, Some(("r-2".into(), RolloutAllowance::Nothing)));
    assert!(waiting.unwrap().contains("99.0.0"));
}

proptest! {
    #[test]
    fn a_box_that_was_reached_stays_reached(
        id in "[a-z]{1,12}", before in 0..700_000_000_u64, after in 0..700_000_000_u64,
        waves in prop_oneof![
            prop::sample::select(vec![json!("default"), json!("accelerated"), json!("ohno"), json!("all")]),
            prop::collection::vec((1..=2048_u16, 0..600_000_u64), 0..6).prop_map(|waves| {
                waves.iter().map(|(seed, after)| json!({"seed_below": seed, "after_s": after})).collect::<Value>()
            }),
        ],
    ) {
        let manifest = manifest(json!([rollout("r-1", 1, json!({"waves": waves}))]), json!({}));
        let allow = |now: u64| {
            desired_states(&manifest, &device(&id, None), START_MS + now).remove(&subject()).unwrap().desired.unwrap().1
        };
        if allow(before) == RolloutAllowance::Everything {
            prop_assert_eq!(allow(before + after), RolloutAllowance::Everything);
        }
    }
}
