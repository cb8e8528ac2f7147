//! Candidates next to a live version: the requests that they get, and the observations of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use ledge::memory_budget::MemoryAccount;
use ledge::pipeline::content::CallContent;
use ledge::principal::Principal;
use ledge::repository::{Candidate, CandidateShare};
use ledge::serving::request::{CacheOutcome, InferRequest, OutputRequest, Payload, ResultForm};

use crate::appliance::{Appliance, ONES, OPENVINO, name, numbers, observations, request, until, version};
use crate::daemon::{data, model_folder, write};

#[tokio::test]
async fn a_canary_has_its_share_of_the_requests_and_who_asks_for_a_number_gets_it() {
    let mut own = Appliance::with_owners("identity_fp32", "").await;
    let release = own.release(2, "log_nan", "");
    let observations = own.candidate(&release, CandidateShare::Canary(0.25)).await;
    let mut answers: BTreeMap<u64, u64> = BTreeMap::new();
    for _ in 0..400 {
        let answer = own.infer(&ONES).await.unwrap();
        // The version that an answer names is the one that computed it.
        let expected = if answer.version == version(1) { 1.0 } else { 0.0 };
        assert_eq!(numbers(&answer), [expected; 4]);
        *answers.entry(answer.version.get()).or_default() += 1;
    }
    assert!((98..=102).contains(&answers[&2]), "{answers:?}");
    let observed = observations.snapshot();
    assert_eq!((observed.incumbent.requests, observed.candidate.requests), (answers[&1], answers[&2]));
    assert_eq!((observed.incumbent.errors, observed.candidate.errors), (0, 0));
    assert!(observed.candidate.p95_us.is_some() && observed.incumbent.p95_us.is_some());
    for number in [1, 2] {
        let answer = own.ask(Some(number), request("IN", &ONES), &Principal::Local).await.unwrap();
        assert_eq!(answer.version, version(number));
    }
    assert_eq!(observations.snapshot(), observed, "a caller who chose a version is no sample");
    // A look at the model is no request.
    assert_eq!(own.live().version, version(1));
    let audited = own.audited();
    assert_eq!(audited.len(), 402);
    assert_eq!(audited.iter().filter(|(version, _)| *version == Some(2)).count() as u64, answers[&2] + 1);
    let notes: BTreeSet<_> = own.repository().index().into_iter().map(|row| (row.version, row.note)).collect();
    assert!(notes.contains(&(Some(version(2)), Some("a candidate, in canary".to_owned()))), "{notes:?}");
    own.end().await;
}

#[tokio::test]
async fn nobody_ever_sees_a_shadow() {
    let mut own = Appliance::with_owners("identity_fp32", "").await;
    let release = own.release(2, "log_nan", "");
    let observations = own.candidate(&release, CandidateShare::Shadow(1.0)).await;
    for round in 1..=50 {
        let answer = own.infer(&ONES).await.unwrap();
        assert_eq!((answer.version, numbers(&answer)), (version(1), vec![1.0; 4]));
        until(&observations, |seen| seen.candidate.requests == round).await;
    }
    let observed = observations.snapshot();
    assert_eq!((observed.incumbent.requests, observed.candidate.requests, observed.skipped), (50, 50, 0));
    assert_eq!((observed.agreed, observed.disagreed, observed.candidate.errors), (0, 50, 0));
    assert!(own.repository().pin(&name(), Some(version(2))).is_err());
    let candidate = own.repository().all_live().into_iter().find(|model| model.version == version(2)).unwrap();
    let (live, shadow) = (own.live().statistics.snapshot(), candidate.statistics.snapshot());
    assert_eq!((live.success.count, live.fail.count), (50, 0));
    assert_eq!((shadow.success.count, shadow.fail.count, shadow.execution_count), (0, 0, 50));
    assert_eq!(own.audited(), vec![(Some(1), true); 50]);
    drop(candidate);
    own.end().await;
}

#[tokio::test]
async fn a_shadow_of_the_same_weights_agrees() {
    let own = Appliance::with_owners("wine_mlp", "").await;
    let release = own.release(2, "wine_mlp", "");
    let model = own.repository().load_beside(&name(), &release).await.unwrap();
    let port = own.live().signature.outputs[0].name.clone();
    let observations = observations(Some(&port));
    let candidate = Candidate { model, share: CandidateShare::Shadow(1.0), observations: observations.clone() };
    own.repository().set_candidate(&name(), Some(candidate));
    let row = [13.05, 1.77, 2.1, 17.0, 107.0, 3.0, 3.0, 0.28, 2.03, 5.04, 0.88, 3.35, 885.0];
    for round in 1..=20 {
        // Classes for the caller, and the numbers behind them for the comparison.
        let outputs = vec![OutputRequest { name: port.clone(), classification: Some(1) }];
        let mut asked = request("features", &row);
        if let Payload::Tensors(tensors) = &mut asked.payload {
            tensors.outputs = Some(outputs);
        }
        let answer = own.ask(None, asked, &Principal::Local).await.unwrap();
        assert_eq!(answer.outputs[0].1.strings().unwrap().count(), 1);
        until(&observations, |seen| seen.agreed == round).await;
    }
    let observed = observations.snapshot();
    assert_eq!((observed.disagreed, observed.candidate.errors), (0, 0));
    assert_eq!(observed.classes.iter().sum::<u64>(), 20);
    own.end().await;
}

#[tokio::test]
async fn a_slow_shadow_is_passed_over_and_holds_nobody_up() {
    let own = Appliance::with_owners("identity_fp32", "").await;
    let release = own.release(2, "slow", "");
    let observations = own.candidate(&release, CandidateShare::Shadow(1.0)).await;
    for round in 0_u8..200 {
        let answer = own.infer(&[f32::from(round); 16]).await.unwrap();
        assert_eq!((answer.version, numbers(&answer)), (version(1), vec![f64::from(round); 16]));
    }
    let observed = observations.snapshot();
    assert_eq!(observed.incumbent.requests, 200);
    let (ran, skipped) = (observed.candidate.requests, observed.skipped);
    assert!(skipped > 100, "all {ran} ran, {skipped} were passed over: the callers have waited for them");
    assert!(ran + skipped <= 200 && ran + skipped + 4 >= 200, "{observed:?}");
    own.repository().release_candidate(&name()).await;
    assert_eq!(own.repository().all_live().len(), 1);
    assert_eq!(own.infer(&[1.0; 16]).await.unwrap().version, version(1));
    own.end().await;
}

#[tokio::test]
async fn a_shadow_that_fails_is_its_own_fault_alone() {
    let mut own = Appliance::with_owners("identity_fp32", "").await;
    for (number, source) in [(2, "identity_fp64"), (3, "add_sub")] {
        let release = own.release(number, source, "");
        let observations = own.candidate(&release, CandidateShare::Shadow(1.0)).await;
        for round in 1..=10 {
            assert_eq!(own.infer(&ONES).await.unwrap().version, version(1));
            until(&observations, |seen| seen.candidate.errors == round).await;
        }
        // A request that the live version refuses is not mirrored.
        own.ask(None, request("OTHER", &ONES), &Principal::Local).await.unwrap_err();
        let observed = observations.snapshot();
        assert_eq!((observed.candidate.requests, observed.agreed + observed.disagreed), (10, 0));
        assert_eq!((observed.incumbent.requests, observed.incumbent.errors), (10, 0));
        assert_eq!(own.audited(), [vec![(Some(1), true); 10], vec![(Some(1), false)]].concat());
    }
    own.end().await;
}

#[tokio::test]
async fn a_canary_answers_for_what_it_fails_and_not_for_what_callers_get_wrong() {
    let own = Appliance::with_owners("identity_fp32", "").await;
    for (number, source) in [(2, "identity_fp64"), (3, "add_sub")] {
        let release = own.release(number, source, "");
        let observations = own.candidate(&release, CandidateShare::Canary(1.0)).await;
        for round in 1..=10 {
            own.infer(&ONES).await.unwrap_err();
            until(&observations, |seen| seen.candidate.errors == round).await;
        }
        for _ in 0..10 {
            own.ask(None, request("OTHER", &ONES), &Principal::Local).await.unwrap_err();
        }
        // More that count, behind those that must not: the incumbent is asked in turn, or not at all while it has
        // enough.
        let mut sent = 10;
        let observed = loop {
            own.infer(&ONES).await.unwrap_err();
            sent += 1;
            let seen = until(&observations, |seen| seen.candidate.errors > 10 || seen.skipped > 0).await;
            if seen.candidate.errors > 10 {
                break seen;
            }
            tokio::task::yield_now().await;
        };
        assert!(observed.candidate.errors <= sent, "{sent} sent: {observed:?}");
        assert_eq!((observed.candidate.requests, observed.incumbent.requests), (observed.candidate.errors, 0));
    }
    own.end().await;
}

#[tokio::test]
async fn photographs_are_mirrored_too() {
    let own = Appliance::with_owners("efficientnet_lite0", "").await;
    let toml = std::fs::read_to_string(model_folder("efficientnet_lite0").join("model.toml")).unwrap();
    let toml = toml.split("[[golden]]").next().unwrap().replace("runtime = \"auto\"\n", "");
    let labels = std::fs::read(model_folder("efficientnet_lite0").join("labels.txt")).unwrap();
    let settings = format!("{OPENVINO}{toml}");
    let place = |folder: &PathBuf| {
        write(&folder.join("model.toml"), settings.as_bytes());
        write(&folder.join("labels.txt"), &labels);
    };
    place(&own.folder.path().join("models/m"));
    own.repository().load(&name(), &Principal::Local).await.unwrap();
    let release = own.release(2, "efficientnet_lite0", "");
    place(&release.folder);
    let observations = own.candidate(&release, CandidateShare::Shadow(1.0)).await;
    let photograph = InferRequest {
        payload: Payload::Content(CallContent::Photograph(data("photos/chelsea.jpg").into()), ResultForm::Json),
        deadline: None,
        priority: None,
        account: MemoryAccount::unlimited(),
    };
    let answer = own.ask(None, photograph.clone(), &Principal::Local).await.unwrap();
    assert_eq!(answer.version, version(1));
    let observed = until(&observations, |seen| seen.candidate.requests == 1).await;
    assert_eq!((observed.agreed, observed.disagreed, observed.candidate.errors), (1, 0, 0));
    own.candidate(&release, CandidateShare::Canary(1.0)).await;
    let canary = own.ask(None, photograph, &Principal::Local).await.unwrap();
    let [result, before] = [&canary, &answer].map(|answer| answer.result.as_ref().unwrap().json.get());
    assert_eq!((canary.version, result), (version(2), before));
    own.end().await;
}

#[tokio::test]
async fn a_kept_answer_of_one_version_is_never_given_for_the_other() {
    let cache = "[response_cache]\nenable = true\n";
    let own = Appliance::with_owners("identity_fp32", cache).await;
    let release = own.release(2, "log_nan", cache);
    let observations = own.candidate(&release, CandidateShare::Canary(0.5)).await;
    let mut hits = BTreeMap::<u64, u64>::new();
    for _ in 0..40 {
        let answer = own.infer(&ONES).await.unwrap();
        let expected = if answer.version == version(1) { 1.0 } else { 0.0 };
        assert_eq!(numbers(&answer), [expected; 4]);
        *hits.entry(answer.version.get()).or_default() += u64::from(answer.cache == Some(CacheOutcome::Hit));
    }
    let observed = observations.snapshot();
    assert_eq!((hits[&1], hits[&2]), (observed.incumbent.requests - 1, observed.candidate.requests - 1));
    // A cached answer belongs to a request of a caller, so the shadow gets the request too.
    let observations = own.candidate(&release, CandidateShare::Shadow(1.0)).await;
    for round in 1..=10 {
        assert_eq!(own.infer(&ONES).await.unwrap().cache, Some(CacheOutcome::Hit));
        until(&observations, |seen| seen.disagreed == round).await;
    }
    assert_eq!(observations.snapshot().incumbent.p95_us, None, "a kept answer takes no run");
    own.end().await;
}

#[tokio::test]
async fn whoever_unloads_a_model_waits_for_no_candidate_and_loses_none() {
    let own = Appliance::with_owners("identity_fp32", "").await;
    let repository = own.repository();
    let release = own.release(2, "slow", "");
    own.candidate(&release, CandidateShare::Shadow(1.0)).await;
    own.infer(&[1.0; 16]).await.unwrap();
    // As an update holds it.
    let held = repository.all_live().pop().unwrap();
    assert_eq!(held.version, version(2));
    repository.unload(&name(), &Principal::Local).await.unwrap();
    own.infer(&[1.0; 16]).await.unwrap_err();
    std::fs::remove_dir_all(own.folder.path().join("models/m")).unwrap();
    repository.refresh(&Principal::Local).await.unwrap();
    assert_eq!(repository.all_live().len(), 1);
    drop(held);
    repository.release_candidate(&name()).await;
    assert!(repository.index().is_empty() && repository.all_live().is_empty());
    own.end().await;
}

#[tokio::test]
async fn both_versions_together_have_the_limits_of_the_live_one() {
    let own = Appliance::with_owners("identity_fp32", "[limits]\nmax_rate = 0.01\nburst = 6\n").await;
    let release = own.release(2, "identity_fp32", "");
    let observations = own.candidate(&release, CandidateShare::Canary(0.5)).await;
    let mut answered = 0;
    for _ in 0..20 {
        answered += u64::from(own.infer(&ONES).await.is_ok());
    }
    let observed = observations.snapshot();
    assert_eq!((answered, observed.candidate.requests + observed.incumbent.requests), (6, 6), "{observed:?}");
    assert_eq!((observed.candidate.errors, observed.incumbent.errors), (0, 0));
    own.end().await;
}
