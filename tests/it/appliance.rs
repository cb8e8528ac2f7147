//! A serving core of the library with real models, for what no daemon does without an update.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge::audit_event::inference::{CallOutcome, RecordDetail, RecordPolicy};
use ledge::audit_event::sink::AuditItem;
use ledge::audit_event::{AuditQueue, AuditSink};
use ledge::config::Config;
use ledge::daemon::Standalone;
use ledge::isolation::ChildStarter;
use ledge::memory_budget::MemoryAccount;
use ledge::names::{ModelName, ModelVersion};
use ledge::principal::Principal;
use ledge::repository::{
    Candidate, CandidateShare, LoadedModel, ManagedVersion, ObservationConfig, ObservationSnapshot, Observations,
    Repository,
};
use ledge::serving::ServingError;
use ledge::serving::request::{CallInputs, FeatureRequest, InferRequest, InferResponse, Payload, TensorPayload};
use ledge::tensor::{Tensor, to_f64};
use tempfile::TempDir;

use crate::daemon::{copy, model_folder, setup_root, write};

/// The model.toml of every model here.
pub const OPENVINO: &str = "runtime = \"openvino\"\n";

/// A serving core over a repository of one model, `m`.
pub struct Appliance {
    pub folder: TempDir,
    pub serving: Standalone,
    pub events: AuditQueue,
}

impl Appliance {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("models")).unwrap();
        let mut config = Config::default();
        config.repository.path = folder.path().join("models");
        config.runtimes.dir = setup_root().join("runtimes");
        config.runtimes.cache = folder.path().join("cache");
        let each_call = RecordPolicy { detail: RecordDetail::Calls, ..RecordPolicy::default() };
        let (audit, events) = AuditSink::with_policy(each_call);
        // The program of this process is not Ledge.
        let starter = ChildStarter::Direct(env!("CARGO_BIN_EXE_ledge").into());
        Self { serving: Standalone::with_starter(&config, audit, starter), folder, events }
    }

    /// With the owner's version 1 of `m`, loaded.
    pub async fn with_owners(source: &str, toml: &str) -> Self {
        let own = Self::new();
        own.owners(1, source, toml);
        own.repository().refresh(&Principal::Local).await.unwrap();
        own
    }

    pub fn repository(&self) -> &Repository {
        self.serving.repository()
    }

    /// Puts a version into the owner's folder.
    pub fn owners(&self, version: u64, source: &str, toml: &str) {
        let model = self.folder.path().join("models/m");
        copy(&model_folder(source).join("1"), &model.join(version.to_string()));
        write(&model.join("model.toml"), format!("{OPENVINO}{toml}").as_bytes());
    }

    /// Puts a release into the store: one flat folder.
    pub fn release(&self, number: u64, source: &str, toml: &str) -> ManagedVersion {
        let folder = self.folder.path().join(format!("releases/m/{number}-{source}"));
        copy(&model_folder(source).join("1"), &folder);
        write(&folder.join("model.toml"), format!("{OPENVINO}{toml}").as_bytes());
        ManagedVersion { version: version(number), folder, golden_min: None }
    }

    /// Loads a release as a candidate.
    pub async fn candidate(&self, release: &ManagedVersion, share: CandidateShare) -> Arc<Observations> {
        let model = self.repository().load_beside(&name(), release).await.unwrap();
        let observations = observations(None);
        let candidate = Candidate { model, share, observations: observations.clone() };
        self.repository().set_candidate(&name(), Some(candidate));
        observations
    }

    pub async fn infer(&self, row: &[f32]) -> Result<InferResponse, ServingError> {
        self.ask(None, request("IN", row), &Principal::User(7)).await
    }

    /// Asks this version, or the default one.
    pub async fn ask(
        &self,
        number: Option<u64>,
        request: InferRequest,
        principal: &Principal,
    ) -> Result<InferResponse, ServingError> {
        let pinned = self.serving.pin(&name(), number.map(version), principal)?;
        self.serving.infer(pinned, request, principal).await
    }

    pub fn live(&self) -> Arc<LoadedModel> {
        self.repository().pin(&name(), None).unwrap()
    }

    /// Takes every model out: a process must not end while a runtime still has one.
    pub async fn end(&self) {
        self.repository().unload_all(&Principal::Local).await;
    }

    /// The versions that calls were audited for.
    pub fn audited(&mut self) -> Vec<(Option<u64>, bool)> {
        let audited = self.events.take().entries.into_iter().filter_map(|entry| match entry.what {
            AuditItem::Call(call) => {
                Some((call.key.version.map(ModelVersion::get), call.key.outcome == CallOutcome::Ok))
            }
            AuditItem::Event(..) => None,
        });
        audited.collect()
    }
}

pub fn name() -> ModelName {
    "m".parse().unwrap()
}

pub fn version(number: u64) -> ModelVersion {
    number.try_into().unwrap()
}

pub fn observations(reference: Option<&str>) -> Arc<Observations> {
    let reference_output = reference.map(str::to_owned);
    Arc::new(Observations::new(ObservationConfig { reference_output, tolerance: 0.01 }, None))
}

pub fn request(input: &str, row: &[f32]) -> InferRequest {
    let inputs =
        CallInputs::Named(vec![(input.to_owned(), Tensor::from_vec(vec![1, row.len()], row.to_vec()).unwrap())]);
    InferRequest {
        payload: Payload::Tensors(TensorPayload { inputs, outputs: None, features: FeatureRequest::default() }),
        deadline: None,
        priority: None,
        account: MemoryAccount::unlimited(),
    }
}

pub fn numbers(response: &InferResponse) -> Vec<f64> {
    to_f64(&response.outputs[0].1).unwrap()
}

/// Waits until what runs in the background has been counted.
pub async fn until(observations: &Observations, done: impl Fn(&ObservationSnapshot) -> bool) -> ObservationSnapshot {
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

pub const ONES: [f32; 4] = [1.0; 4];
