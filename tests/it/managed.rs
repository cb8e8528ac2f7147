//! Models that updates manage, and candidates beside them: the library with real models, without the part that decides.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ledge::audit_event::{AuditEvent, AuditSink};
use ledge::config::Config;
use ledge::daemon::serving_alone;
use ledge::names::{ModelName, ModelVersion};
use ledge::principal::Principal;
use ledge::repository::{
    Candidate, CandidateShare, LoadModelError, LoadedModel, ManagedVersion, ObservationConfig, Observations, Observed,
    Repository, State, UnloadModelError,
};
use ledge::serving::request::{
    CacheOutcome, FeatureRequest, InferRequest, InferResponse, Inputs, OutputRequest, PhotographRequest,
};
use ledge::serving::{Serving, ServingError};
use ledge::tensor::{Tensor, to_f64};
use tempfile::TempDir;
use tokio::sync::mpsc;

use crate::daemon::{copy, data, model_folder, setup_root, write};

/// What is said of every model here: the process of the tests must not load ONNX Runtime.
const OPENVINO: &str = "runtime = \"openvino\"\n";

/// A serving core over a repository of one model, `m`.
struct Appliance {
    folder: TempDir,
    serving: Serving,
    events: mpsc::Receiver<AuditEvent>,
}

impl Appliance {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("models")).unwrap();
        let mut config = Config::default();
        config.repository.path = folder.path().join("models");
        config.runtimes.dir = setup_root().join("runtimes");
        config.runtimes.cache = folder.path().join("cache");
        let (audit, events) = AuditSink::channel();
        Self { serving: serving_alone(&config, audit), folder, events }
    }

    /// With the owner's version 1 of `m`, loaded.
    async fn with_owners(source: &str, toml: &str) -> Self {
        let own = Self::new();
        own.owners(1, source, toml);
        own.repository().refresh(&Principal::Local).await.unwrap();
        own
    }

    fn repository(&self) -> &Repository {
        self.serving.repository()
    }

    /// Puts a version into the owner's folder.
    fn owners(&self, version: u64, source: &str, toml: &str) {
        let model = self.folder.path().join("models/m");
        copy(&model_folder(source).join("1"), &model.join(version.to_string()));
        write(&model.join("model.toml"), format!("{OPENVINO}{toml}").as_bytes());
    }

    /// Puts a release into the store: one flat folder.
    fn release(&self, number: u64, source: &str, toml: &str) -> ManagedVersion {
        let folder = self.folder.path().join(format!("releases/m/{number}-{source}"));
        copy(&model_folder(source).join("1"), &folder);
        write(&folder.join("model.toml"), format!("{OPENVINO}{toml}").as_bytes());
        ManagedVersion { version: version(number), folder, golden_min: None }
    }

    /// Loads a release as a candidate.
    async fn candidate(&self, release: &ManagedVersion, share: CandidateShare) -> Arc<Observations> {
        let model = self.repository().load_beside(&name(), release).await.unwrap();
        let observations = observations(None);
        let candidate = Candidate { model, share, observations: observations.clone() };
        self.repository().set_candidate(&name(), Some(candidate));
        observations
    }

    async fn infer(&self, row: &[f32]) -> Result<InferResponse, ServingError> {
        self.serving.infer(request("IN", row, None), &Principal::User(7)).await
    }

    fn live(&self) -> Arc<LoadedModel> {
        self.repository().pin(&name(), None).unwrap()
    }

    /// Takes every model out: a process must not end while a runtime still has one.
    async fn end(&self) {
        self.repository().unload_all(&Principal::Local).await;
    }

    /// The versions that calls were audited for.
    fn audited(&mut self) -> Vec<(Option<u64>, bool)> {
        let mut calls = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            if let AuditEvent::Inference { version, ok, .. } = event {
                calls.push((version.map(ModelVersion::get), ok));
            }
        }
        calls
    }
}

fn name() -> ModelName {
    "m".parse().unwrap()
}

fn version(number: u64) -> ModelVersion {
    number.try_into().unwrap()
}

fn observations(reference: Option<&str>) -> Arc<Observations> {
    let reference_output = reference.map(str::to_owned);
    Arc::new(Observations::new(ObservationConfig { reference_output, tolerance: 0.01 }))
}

fn request(input: &str, row: &[f32], version: Option<u64>) -> InferRequest {
    InferRequest {
        model: name(),
        version: version.map(self::version),
        inputs: Inputs::Named(vec![(input.to_owned(), Tensor::from_vec(vec![1, row.len()], row.to_vec()).unwrap())]),
        outputs: None,
        deadline: None,
        priority: None,
        features: FeatureRequest::default(),
    }
}

fn numbers(response: &InferResponse) -> Vec<f64> {
    to_f64(&response.outputs[0].1).unwrap()
}

/// Waits until what runs in the background has been counted.
async fn until(observations: &Observations, done: impl Fn(&Observed) -> bool) -> Observed {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let observed = observations.snapshot();
        if done(&observed) {
            return observed;
        }
        assert!(Instant::now() < deadline, "{observed:?}");
        tokio::task::yield_now().await;
    }
}

const ONES: [f32; 4] = [1.0; 4];

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
    assert_eq!(
        (live.version, live.labels["OUT"].as_slice()),
        (version(2), ["cat", "dog"].map(String::from).as_slice())
    );
    assert!(live.memory_bytes() > 0);
    assert_eq!(repository.managed(&name()).unwrap().fault, None);
    assert!(repository.pin(&name(), Some(version(7))).is_err());
    let rows = repository.index();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!((&rows[0].state, rows[0].note.as_deref()), (&State::Ready, Some("managed by updates")));

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
        assert!(fault.contains("model.onnx is empty"), "{fault}");
        let rows = repository.index();
        let ready = rows.iter().find(|row| row.version == Some(version(owners))).unwrap();
        assert_eq!(ready.state, State::Ready);
        let note = ready.note.as_deref().unwrap();
        assert!(note.contains("stands in") && note.contains("model.onnx is empty"), "{note}");
        if owners == 7 {
            let managed = rows.iter().find(|row| row.version == Some(version(2))).unwrap();
            assert!(matches!(&managed.state, State::Unavailable(reason) if reason.contains("is empty")), "{managed:?}");
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
    assert!(error.contains("is empty"), "{error}");
    write(&release.folder.join("model.onnx"), &whole);
    own.repository().refresh(&Principal::Local).await.unwrap();
    assert_eq!(own.infer(&ONES).await.unwrap().version, version(2));
    own.end().await;
}

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
        let answer = own.serving.infer(request("IN", &ONES, Some(number)), &Principal::Local).await.unwrap();
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
        let asked = InferRequest { outputs: Some(outputs), ..request("features", &row, None) };
        let answer = own.serving.infer(asked, &Principal::Local).await.unwrap();
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
        // What the live version refuses is not mirrored.
        own.serving.infer(request("OTHER", &ONES, None), &Principal::Local).await.unwrap_err();
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
            own.serving.infer(request("OTHER", &ONES, None), &Principal::Local).await.unwrap_err();
        }
        // More that count, behind those that must not: the incumbent is asked in turn, or not at all while it has enough.
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
    let photograph = PhotographRequest {
        model: name(),
        version: None,
        photograph: data("photos/chelsea.jpg").into(),
        deadline: None,
        priority: None,
    };
    let answer = own.serving.classify(photograph.clone(), &Principal::Local).await.unwrap();
    assert_eq!(answer.response.version, version(1));
    let observed = until(&observations, |seen| seen.candidate.requests == 1).await;
    assert_eq!((observed.agreed, observed.disagreed, observed.candidate.errors), (1, 0, 0));
    own.candidate(&release, CandidateShare::Canary(1.0)).await;
    let canary = own.serving.classify(photograph, &Principal::Local).await.unwrap();
    assert_eq!((canary.response.version, &canary.labels), (version(2), &answer.labels));
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
    // A kept answer is what a caller asked for, so the shadow is asked too.
    let observations = own.candidate(&release, CandidateShare::Shadow(1.0)).await;
    for round in 1..=10 {
        assert_eq!(own.infer(&ONES).await.unwrap().cache, Some(CacheOutcome::Hit));
        until(&observations, |seen| seen.disagreed == round).await;
    }
    assert_eq!(observations.snapshot().incumbent.p95_us, None, "a kept answer takes no run");
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
    // What cannot be loaded leaves what runs.
    repository.restore(&name(), Some(release), None).await.unwrap_err();
    assert_eq!((own.live().version, repository.managed(&name())), (version(1), None));
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
    let callers = tokio::task::JoinSet::from_iter((0..3_u8).map(|caller| {
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
    }));
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
    let mut toml = String::new();
    for number in 0..4 {
        toml += &format!("[[golden]]\nfile = \"{number}.json\"\n");
    }
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
        assert_eq!(loaded.is_ok(), loads, "{least:?}: {loaded:?}");
        if let Ok(model) = loaded {
            let score = ledge::repository::golden_score(&model, &release.folder).await;
            assert_eq!((score.right, score.total), (3, 4));
            assert!(score.first_wrong.unwrap().starts_with("golden input 3.json: output \"OUT\" differs by 6"));
            own.repository().end(model).await;
        }
    }
    own.end().await;
}
