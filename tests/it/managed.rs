//! Models with a live version that updates decide.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use ledge::principal::Principal;
use ledge::repository::{
    CandidateShare, GoldenError, LoadModelError, LoadedModel, Observations, UnloadModelError, VersionLoadError,
    VersionState, golden_score,
};
use ledge::scheduling::instance::FailureClass;
use ledge::serving::ServingError;
use ledge::serving::request::InferRequest;
use ledge::updates::gates;
use ledge::updates::plan::RolloutGate;
use ledge::updates::state::RollbackCause;
use tokio::task::JoinSet;

use crate::appliance::{Appliance, ONES, name, numbers, observations, request, until, version};
use crate::daemon::write;

#[tokio::test]
async fn all_is_unloaded_when_models_that_were_replaced_are_torn_down_too() {
    let own = Appliance::with_owners("identity_fp32", "").await;
    let replaced = own.live();
    own.repository().load(&name(), &Principal::Local).await.unwrap();
    assert!(!Arc::ptr_eq(&replaced, &own.live()));
    let mut unloading = std::pin::pin!(own.end());
    // The live version is gone, and a caller still uses the one before.
    let still_used = async {
        while matches!(own.repository().index()[0].state, VersionState::Ready | VersionState::Unloading) {
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = &mut unloading => panic!("it did not wait for the model that was replaced"),
        () = still_used => {}
    }
    drop(replaced);
    unloading.await;
    assert!(own.repository().engine().wait_until_empty().now_or_never().is_some());
}

#[tokio::test]
async fn a_managed_model_comes_from_its_release_and_nobody_else_may_touch_it() {
    let own = Appliance::new();
    own.owners(7, "log_nan", "");
    let release = own.release(
        2,
        "identity_fp32",
        "[[output]]\nname = \"OUT\"\nlabels = \"labels.txt\"\n[[golden]]\nfile = \"golden.json\"\n",
    );
    write(&release.folder.join("labels.txt"), b"cat\ndog\n");
    let tensor = |name: &str| format!(r#"[{{"name": "{name}", "shape": [1, 2], "data": [1, 2]}}]"#);
    let golden = format!(r#"{{"inputs": {}, "outputs": {}}}"#, tensor("IN"), tensor("OUT"));
    write(&release.folder.join("golden.json"), golden.as_bytes());
    let repository = own.repository();
    repository.manage(BTreeMap::from([(name(), release.clone())]));
    repository.refresh(&Principal::Local).await.unwrap();

    let live = own.live();
    assert_eq!((live.version, &*live.labels["OUT"]), (version(2), &["cat", "dog"].map(String::from)[..]));
    assert!(live.instance_usage().bytes > 0);
    assert_eq!(repository.managed(&name()).unwrap().fault, None);
    assert!(repository.pin(&name(), Some(version(7))).is_err());
    let rows = repository.index();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!((&rows[0].state, rows[0].note.as_deref()), (&VersionState::Ready, Some("managed by updates")));

    assert!(matches!(repository.load(&name(), &Principal::Local).await, Err(LoadModelError::Managed(_))));
    assert!(matches!(repository.unload(&name(), &Principal::Local).await, Err(UnloadModelError::Managed(_))));
    repository.refresh(&Principal::Local).await.unwrap();
    assert!(Arc::ptr_eq(&live, &own.live()), "a look at the folders has loaded it again");
    drop(live);
    own.end().await;
    assert!(repository.pin(&name(), None).is_err());
}

#[tokio::test]
async fn a_managed_model_without_an_owners_folder_is_served_and_not_forgotten() {
    let own = Appliance::new();
    let release = own.release(2, "identity_fp32", "");
    own.repository().manage(BTreeMap::from([(name(), release)]));
    for _ in 0..2 {
        own.repository().refresh(&Principal::Local).await.unwrap();
        assert_eq!(own.infer(&ONES).await.unwrap().version, version(2));
    }
    own.end().await;
}

#[tokio::test]
async fn for_a_damaged_release_the_owners_version_stands_in_and_says_so() {
    for owners in [2, 7] {
        let own = Appliance::new();
        own.owners(owners, "identity_fp32", "");
        let release = own.release(2, "identity_fp32", "");
        write(&release.folder.join("model.onnx"), b"");
        let repository = own.repository();
        repository.manage(BTreeMap::from([(name(), release)]));
        repository.refresh(&Principal::Local).await.unwrap();
        assert_eq!(own.infer(&ONES).await.unwrap().version, version(owners));
        let fault = repository.managed(&name()).unwrap().fault.unwrap();
        assert!(fault.contains("model.onnx"), "{fault}");
        let rows = repository.index();
        let ready = rows.iter().find(|row| row.version == Some(version(owners))).unwrap();
        assert_eq!(ready.state, VersionState::Ready);
        let note = ready.note.as_deref().unwrap();
        assert!(note.contains("model.onnx"), "{note}");
        if owners == 7 {
            let managed = rows.iter().find(|row| row.version == Some(version(2))).unwrap();
            assert!(
                matches!(&managed.state, VersionState::Unavailable(reason) if reason.to_string().contains("model.onnx")),
                "{managed:?}"
            );
        }
        assert!(matches!(repository.load(&name(), &Principal::Local).await, Err(LoadModelError::Managed(_))));
        own.end().await;
    }
}

#[tokio::test]
async fn a_damaged_release_without_an_owners_version_is_told_and_tried_again() {
    let own = Appliance::new();
    let release = own.release(2, "identity_fp32", "");
    let whole = std::fs::read(release.folder.join("model.onnx")).unwrap();
    write(&release.folder.join("model.onnx"), b"");
    own.repository().manage(BTreeMap::from([(name(), release.clone())]));
    own.repository().refresh(&Principal::Local).await.unwrap();
    let error = own.infer(&ONES).await.unwrap_err().to_string();
    assert!(error.contains("model.onnx"), "{error}");
    write(&release.folder.join("model.onnx"), &whole);
    own.repository().refresh(&Principal::Local).await.unwrap();
    assert_eq!(own.infer(&ONES).await.unwrap().version, version(2));
    own.end().await;
}

#[tokio::test]
async fn a_version_that_went_live_is_watched_on_and_the_one_before_comes_back_at_once() {
    let own = Appliance::with_owners("identity_fp32", "").await;
    let release = own.release(2, "log_nan", "");
    let observations = own.candidate(&release, CandidateShare::Canary(0.0)).await;
    for _ in 0..5 {
        assert_eq!(own.infer(&ONES).await.unwrap().version, version(1));
    }
    let repository = own.repository();
    let loaded = repository.load_beside(&name(), &release).await.unwrap();
    let kept = repository.activate(&name(), loaded, release.clone(), Some(observations.clone())).await.unwrap();
    assert_eq!(kept.version, version(1));
    for _ in 0..7 {
        assert_eq!(own.infer(&ONES).await.unwrap().version, version(2));
    }
    let observed = observations.snapshot();
    assert_eq!((observed.incumbent.requests, observed.candidate.requests), (5, 7));
    assert_eq!(repository.managed(&name()).unwrap().release, release);

    let next = own.release(3, "identity_fp32", "");
    let loaded = repository.load_beside(&name(), &next).await.unwrap();
    let second = repository.activate(&name(), loaded, next, None).await.unwrap();
    own.infer(&ONES).await.unwrap();
    assert_eq!(observations.snapshot(), observed, "the soak is over");
    // Were it loaded, it would fail.
    std::fs::remove_dir_all(&release.folder).unwrap();
    repository.restore(&name(), Some(release.clone()), Some(second.clone())).await.unwrap();
    assert!(Arc::ptr_eq(&own.live(), &second));
    // And back to the owner's, which was kept from the beginning.
    repository.restore(&name(), None, Some(kept.clone())).await.unwrap();
    assert!(Arc::ptr_eq(&own.live(), &kept));
    assert_eq!(repository.managed(&name()), None);
    repository.load(&name(), &Principal::Local).await.unwrap();
    // A release that cannot be loaded leaves the running version.
    repository.restore(&name(), Some(release), None).await.unwrap_err();
    assert_eq!((own.live().version, repository.managed(&name())), (version(1), None));
    drop((kept, second));
    own.end().await;
}

/// Version 2, live and in its soak, over the owner's version 1.
async fn soaking(own: &Appliance, source: &str, toml: &str) -> (Arc<Observations>, Arc<LoadedModel>) {
    let release = own.release(2, source, toml);
    let loaded = own.repository().load_beside(&name(), &release).await.unwrap();
    let observations = observations(None);
    let kept = own.repository().activate(&name(), loaded, release, Some(observations.clone())).await.unwrap();
    (observations, kept)
}

#[tokio::test]
async fn a_full_queue_and_callers_in_a_hurry_fail_no_soak() {
    let own = Appliance::with_owners("slow", "").await;
    let (observations, kept) = soaking(&own, "slow", "[queue]\nmax_size = 1\n").await;
    let row = [1.0; 16];
    let in_a_hurry = |milliseconds| {
        let deadline = Some(Instant::now() + Duration::from_millis(milliseconds));
        own.ask(None, InferRequest { deadline, ..request("IN", &row) }, &Principal::Local)
    };
    let (mut late, mut overloaded) = (0_u64, 0_u64);
    let limit = Instant::now() + Duration::from_mins(1);
    // Which of these deadlines a call misses depends on the machine.
    for milliseconds in [1, 3, 10, 30].into_iter().cycle() {
        for answer in futures_util::future::join_all((0..8).map(|_| in_a_hurry(milliseconds))).await {
            match answer {
                Ok(_) => {}
                Err(ServingError::Run { error, .. }) if error.class() == FailureClass::DeadlineExceeded => late += 1,
                Err(ServingError::Run { error, .. }) if error.class() == FailureClass::Overloaded => overloaded += 1,
                Err(error) => panic!("{error}"),
            }
        }
        // A run that its caller did not wait for is a run.
        let runs = observations.snapshot().candidate.requests;
        if late > 20 && overloaded > 20 && runs >= 5 {
            break;
        }
        assert!(Instant::now() < limit, "{late} late, {overloaded} overloaded, {runs} runs");
    }
    let observed = observations.snapshot();
    assert_eq!(observed.candidate.errors, 0, "{observed:?}");
    assert_eq!(gates::judge_soak(&RolloutGate::default(), &observed, None), Ok(()));
    drop(kept);
    own.end().await;
}

#[tokio::test]
async fn runs_beyond_the_models_own_timeout_fail_a_soak() {
    let own = Appliance::with_owners("slow", "").await;
    let (observations, kept) = soaking(&own, "slow", "[queue]\ndefault_timeout_ms = 1\n").await;
    // A run that does not begin in time is not counted.
    for _ in 0..400 {
        own.infer(&[1.0; 16]).await.unwrap_err();
        tokio::time::sleep(Duration::from_millis(30)).await;
        if observations.snapshot().candidate.errors >= 20 {
            break;
        }
    }
    let observed = observations.snapshot();
    let reason = gates::judge_soak(&RolloutGate::default(), &observed, None).unwrap_err();
    assert_eq!(reason.cause, RollbackCause::Errors, "{reason}");
    drop(kept);
    own.end().await;
}

#[tokio::test]
async fn a_model_that_only_updates_brought_ends_when_its_first_release_is_taken_back() {
    let own = Appliance::new();
    let repository = own.repository();
    repository.refresh(&Principal::Local).await.unwrap();
    let release = own.release(1, "identity_fp32", "");
    let loaded = repository.load_beside(&name(), &release).await.unwrap();
    assert!(repository.index().is_empty());
    assert!(repository.activate(&name(), loaded, release, None).await.is_none());
    assert_eq!(own.infer(&ONES).await.unwrap().version, version(1));
    repository.restore(&name(), None, None).await.unwrap();
    assert!(repository.index().is_empty() && own.infer(&ONES).await.is_err());
    own.end().await;
}

#[tokio::test]
async fn back_at_the_owners_folder_its_policy_counts_again() {
    let own = Appliance::new();
    for number in [1, 2] {
        own.owners(number, "identity_fp32", "version_policy = \"all\"\n");
    }
    let repository = own.repository();
    repository.refresh(&Principal::Local).await.unwrap();
    let release = own.release(2, "identity_fp32", "");
    let loaded = repository.load_beside(&name(), &release).await.unwrap();
    repository.activate(&name(), loaded, release, None).await.unwrap();
    let versions = || repository.live(&name()).unwrap().iter().map(|live| live.version.get()).collect::<Vec<_>>();
    assert_eq!(versions(), [2]);
    repository.restore(&name(), None, None).await.unwrap();
    assert_eq!(versions(), [1, 2]);
    let owners = own.folder.path().join("models");
    assert!(repository.live(&name()).unwrap().iter().all(|live| live.folder.starts_with(&owners)));
    own.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_swap_under_load_loses_no_request() {
    let own = Arc::new(Appliance::with_owners("identity_fp32", "").await);
    let stop = Arc::new(AtomicBool::new(false));
    let callers: JoinSet<_> = (0..3_u8)
        .map(|caller| {
            let (own, stop) = (own.clone(), stop.clone());
            async move {
                let mut versions = BTreeSet::new();
                while !stop.load(Ordering::Relaxed) {
                    let answer = own.infer(&[f32::from(caller); 4]).await.unwrap();
                    assert_eq!(numbers(&answer), [f64::from(caller); 4]);
                    versions.insert(answer.version.get());
                }
                versions
            }
        })
        .collect();
    let repository = own.repository();
    for number in 2..8 {
        let release = own.release(number, "identity_fp32", "");
        own.candidate(&release, CandidateShare::Shadow(0.5)).await;
        let observations = own.candidate(&release, CandidateShare::Canary(0.5)).await;
        until(&observations, |seen| seen.candidate.requests > 3 && seen.incumbent.requests > 3).await;
        let loaded = repository.load_beside(&name(), &release).await.unwrap();
        let soak = observations.clone();
        let kept = repository.activate(&name(), loaded, release, Some(soak)).await;
        let before = observations.snapshot().candidate.requests;
        until(&observations, |seen| seen.candidate.requests > before + 3).await;
        if number % 2 == 0 {
            repository.restore(&name(), None, kept).await.unwrap();
        }
    }
    stop.store(true, Ordering::Relaxed);
    for versions in callers.join_all().await {
        assert!(versions.len() >= 2, "{versions:?}");
    }
    let failed: u64 = repository.all_live().iter().map(|model| model.statistics.snapshot().fail.count).sum();
    assert_eq!(failed, 0);
    own.end().await;
}

#[tokio::test]
async fn a_release_may_miss_as_many_golden_inputs_as_it_was_allowed() {
    let own = Appliance::new();
    let toml = [0, 1, 2, 3].map(|number| format!("[[golden]]\nfile = \"{number}.json\"\n")).concat();
    let mut release = own.release(2, "identity_fp32", &toml);
    for number in 0..4 {
        // The last one is wrong.
        let expected = if number == 3 { 9 } else { number };
        let golden = format!(
            r#"{{"inputs": [{{"name": "IN", "shape": [1, 1], "data": [{number}]}}],
                "outputs": [{{"name": "OUT", "shape": [1, 1], "data": [{expected}]}}]}}"#
        );
        write(&release.folder.join(format!("{number}.json")), golden.as_bytes());
    }
    for (least, loads) in [(None, false), (Some(0.75), true), (Some(0.76), false), (Some(0.0), true)] {
        release.golden_min = least;
        let loaded = own.repository().load_beside(&name(), &release).await;
        assert_eq!(loaded.as_ref().map_or_else(VersionLoadError::is_wrong, |_| false), !loads, "{least:?}: {loaded:?}");
        if let Ok(model) = loaded {
            let score = golden_score(&model, &release.folder).await;
            assert_eq!((score.right, score.total), (3, 4));
            let Some(GoldenError::Wrong(fault)) = score.fault else { panic!("{score:?}") };
            assert!(fault.starts_with("golden input 3.json: output \"OUT\" differs by 6"), "{fault}");
            own.repository().end(model).await;
        }
    }
    own.end().await;
}
