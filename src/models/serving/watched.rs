//! Requests that an update watches: answered as any other, counted for the version that answered, and asked again of the
//! other version in the background, where nobody waits for it.
//!
//! What is asked again leaves no trace but in the update's own counts: it passes no quota and no limit, is not audited as a
//! call, and neither reads nor fills a response cache. A request that a cache answered is mirrored like any other: what
//! counts is what callers ask, and a model with a well-filled cache would otherwise be judged by its rarest requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::principal::Principal;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::RunError;
use tokio::sync::OwnedSemaphorePermit;

use super::answer::{names, photograph_pipeline, run, run_photograph};
use super::call::Call;
use super::request::{
    CacheOutcome, FeatureRequest, InferRequest, InferResponse, Inputs, OutputRequest, PhotographRequest,
};
use super::{PhotographResponse, Serving, ServingError, finish, inputs};
use crate::repository::LoadedModel;
use crate::repository::agreement::{self, Output};
use crate::repository::candidate::{Other, Watched};
use crate::repository::observations::{Observations, Role};
use crate::scheduling::instance::{InferError, LateRun};
use crate::scheduling::terms::{Priority, Terms};

/// For how long what is asked again may wait and run.
const LIMIT: Duration = Duration::from_secs(30);

/// A request as it is asked again. Its bytes are those of the first one.
#[derive(Debug)]
enum Asked {
    Tensors { inputs: Inputs, features: FeatureRequest, outputs: Option<Vec<OutputRequest>> },
    Photograph(PhotographRequest),
}

/// Named outputs.
type Outputs = Vec<(String, Tensor)>;

/// Whose fault a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The version's, unless the other one fails the same.
    Unclear,
    /// The version's, if its run takes longer than the model's own timeout.
    Late,
    /// Nobody's: neither version was asked, or this box had no time for it.
    Nobody,
}

impl Serving {
    /// As [`Serving::infer`], for a call that is watched.
    pub(super) async fn infer_watched(
        &self,
        call: Call<'_>,
        watched: Watched,
        request: InferRequest,
    ) -> Result<InferResponse, ServingError> {
        let again = watched.other.is_some().then(|| Asked::of(&request));
        let mut outputs = Vec::new();
        let mut answered = match self.admit(&call, gatekeeper(&call, &watched), request.priority) {
            Ok(_permit) => self.infer_pinned(&call, request, Some(&mut outputs)).await,
            Err(refused) => Err(refused.into()),
        };
        let seen = answered.as_mut().map(|(response, _)| (outputs, run_time(response)));
        self.observe(&call.model, watched, again, seen);
        finish(call, answered)
    }

    /// As [`Serving::infer_photograph`], for a call that is watched.
    pub(super) async fn infer_photograph_watched(
        &self,
        call: Call<'_>,
        watched: Watched,
        request: PhotographRequest,
    ) -> Result<PhotographResponse, ServingError> {
        let again = watched.other.is_some().then(|| Asked::Photograph(request.clone()));
        let mut answered = match self.admit(&call, gatekeeper(&call, &watched), request.priority) {
            Ok(_permit) => self.infer_photograph_pinned(&call, request).await,
            Err(refused) => Err(refused.into()),
        };
        let seen = answered
            .as_mut()
            .map(|(PhotographResponse { response, .. }, _)| (response.outputs.clone(), run_time(response)));
        self.observe(&call.model, watched, again, seen);
        finish(call, answered)
    }

    /// Counts what `model` made of a request, and asks the other version where that is called for.
    fn observe(
        &self,
        model: &Arc<LoadedModel>,
        watched: Watched,
        again: Option<Asked>,
        seen: Result<(Outputs, Option<Duration>), &mut ServingError>,
    ) {
        let Watched { observations, role, other } = watched;
        let other = other.zip(again);
        match (seen, other) {
            (Ok((outputs, time)), other) => {
                observations.answered(role, time);
                match (role, other) {
                    (Role::Candidate, _) => count_classes(&observations, model, &outputs),
                    (Role::Incumbent, Some((other, again))) => {
                        self.mirror(model, other, again, outputs, observations);
                    }
                    (Role::Incumbent, None) => {}
                }
            }
            (Err(error), other) => match fault(error) {
                Fault::Nobody => {}
                Fault::Late => {
                    if let ServingError::DeadlineExceeded { run, .. } = error
                        && let Some(run) = run.take()
                    {
                        self.count_late(model, role, run, other, observations);
                    }
                }
                // Without another version to ask, a model that fails on what it took is at fault, and a caller who sends
                // what the model does not take is not.
                Fault::Unclear if (role == Role::Incumbent || other.is_none()) && !is_of_model(error) => {}
                Fault::Unclear => self.count_failure(role, other, observations),
            },
        }
    }

    /// Counts what `role` failed: of the candidate only what the incumbent answers, where that can be asked.
    fn count_failure(&self, role: Role, other: Option<(Other, Asked)>, observations: Arc<Observations>) {
        match (role, other) {
            (Role::Candidate, Some((other, again))) => self.blame(other, again, observations),
            _ => observations.failed(role),
        }
    }

    /// Counts a request whose deadline passed, once its run has ended: as failed when the run took longer than the model's
    /// own timeout, and as answered otherwise. A request that got no run while it waited does not count, for a busy machine
    /// and a caller in a hurry say nothing of the version.
    fn count_late(
        &self,
        model: &Arc<LoadedModel>,
        role: Role,
        run: LateRun,
        other: Option<(Other, Asked)>,
        observations: Arc<Observations>,
    ) {
        // The model itself is not held: whoever unloads it must not wait for this.
        let (serving, timeout) = (self.clone(), model.timeout);
        let stop = other.as_ref().map(|(other, _)| other.stop.clone()).unwrap_or_default();
        self.mirrors.spawn(async move {
            let ended = tokio::select! {
                ended = tokio::time::timeout(timeout.max(LIMIT), run.ended()) => ended,
                () = stop.cancelled() => return,
            };
            let time = match ended {
                Ok(Some(Ok(answer))) => answer.prepare + answer.run.time.total(),
                Ok(Some(Err(InferError::Run(RunError::Runtime { .. })))) | Err(_) => Duration::MAX,
                Ok(Some(Err(_)) | None) => return,
            };
            if time <= timeout {
                observations.answered(role, Some(time));
            } else {
                serving.count_failure(role, other, observations);
            }
        });
    }

    /// Asks the candidate what `live` has answered with `outputs`, and compares. What comes while all places are taken is
    /// passed over: nobody waits for this, and it must not pile up.
    fn mirror(
        &self,
        live: &Arc<LoadedModel>,
        other: Other,
        asked: Asked,
        outputs: Outputs,
        observations: Arc<Observations>,
    ) {
        let Ok(place) = other.places.clone().try_acquire_owned() else {
            observations.skipped();
            return;
        };
        let candidate = other.model.clone();
        let asked = asked.with_output(&candidate, observations.config().reference_output.as_deref());
        let in_order = matches!(asked, Asked::Photograph(_));
        // Whoever unloads it must not wait for this.
        let live = Arc::downgrade(live);
        self.ask_again(other, place, asked, Priority::Batch, move |answer| match answer {
            Ok(response) => {
                observations.answered(Role::Candidate, run_time(&response));
                count_classes(&observations, &candidate, &response.outputs);
                let Some(live) = live.upgrade() else { return };
                let config = observations.config();
                let reference = config.reference_output.as_deref();
                let one = |name: &String, tensor| output(&live, reference, name, tensor);
                let pairs = outputs.iter().enumerate().map(|(place, (name, tensor))| {
                    // An output of a photograph may have another name in another version.
                    let same = |(at, (other, _)): &(usize, &(String, Tensor))| {
                        if in_order { *at == place } else { other == name }
                    };
                    let (_, (other, found)) = response.outputs.iter().enumerate().find(same)?;
                    Some((one(name, tensor), output(&candidate, reference, other, found)))
                });
                let pairs: Option<Vec<_>> = pairs.collect();
                observations.compared(pairs.is_some_and(|pairs| agreement::agree(&pairs, config.tolerance)));
            }
            // Background work comes after everybody else's: that it had no turn says nothing of the candidate.
            Err(ServingError::Overloaded { .. } | ServingError::DeadlineExceeded { .. } | ServingError::NoRoom(_)) => {
                observations.skipped();
            }
            Err(error) => {
                tracing::debug!(model = %candidate.name, version = %candidate.version, %error, "a candidate failed in shadow");
                observations.failed(Role::Candidate);
            }
        });
    }

    /// Asks the incumbent what the candidate has failed: the failure counts when the incumbent has an answer.
    fn blame(&self, other: Other, asked: Asked, observations: Arc<Observations>) {
        let Ok(place) = other.places.clone().try_acquire_owned() else {
            // A candidate that is at fault is so again when there is a place.
            observations.skipped();
            return;
        };
        // It takes the turn of a request that has got nothing for its own. As background work it could wait for long.
        self.ask_again(other, place, asked, Priority::Interactive, move |answer| {
            match answer.as_ref().map_err(fault) {
                Ok(_) => observations.failed(Role::Candidate),
                Err(Fault::Unclear) => {}
                Err(Fault::Late | Fault::Nobody) => observations.skipped(),
            }
        });
    }

    /// Asks `other` in the background and hands what comes to `then`, unless the candidate is taken away meanwhile.
    fn ask_again(
        &self,
        other: Other,
        place: OwnedSemaphorePermit,
        asked: Asked,
        priority: Priority,
        then: impl FnOnce(Result<InferResponse, ServingError>) + Send + 'static,
    ) {
        let (serving, Other { model, stop, .. }) = (self.clone(), other);
        self.mirrors.spawn(async move {
            tokio::select! {
                answer = serving.answer_again(&model, asked, priority) => then(answer),
                () = stop.cancelled() => {}
            }
            drop(place);
        });
    }

    /// Runs `model` for the box itself, whatever is kept.
    async fn answer_again(
        &self,
        model: &LoadedModel,
        asked: Asked,
        priority: Priority,
    ) -> Result<InferResponse, ServingError> {
        let started = Instant::now();
        let deadline = started + model.timeout.min(LIMIT);
        let terms = Terms { deadline, priority, principal: Principal::Local };
        let (answer, names) = match asked {
            Asked::Tensors { inputs, features, outputs } => {
                let (inputs, _) = self.filled(model, inputs, features, &terms, started).await?;
                let fitted = inputs::fit(model, inputs, outputs.as_deref())?;
                let names = names(model, &fitted.outputs);
                (run(model, fitted, terms, started).await?, names)
            }
            Asked::Photograph(request) => {
                let pipeline = photograph_pipeline(model)?;
                let answer = run_photograph(model, pipeline, request, self.limits, terms, started).await?;
                (answer, names(model, pipeline.outputs()))
            }
        };
        Ok(answer.into_response(model, names).0)
    }
}

impl Asked {
    fn of(request: &InferRequest) -> Self {
        let plain = |wanted: &OutputRequest| OutputRequest { name: wanted.name.clone(), classification: None };
        Self::Tensors {
            inputs: request.inputs.clone(),
            features: request.features.clone(),
            outputs: request.outputs.as_ref().map(|wanted| wanted.iter().map(plain).collect()),
        }
    }

    /// Asks for this output too, if `model` has it.
    fn with_output(mut self, model: &LoadedModel, output: Option<&str>) -> Self {
        if let (Self::Tensors { outputs: Some(wanted), .. }, Some(output)) = (&mut self, output)
            && model.signature.outputs.iter().any(|port| port.name == output)
            && !wanted.iter().any(|wanted| wanted.name == output)
        {
            wanted.push(OutputRequest { name: output.to_owned(), classification: None });
        }
        self
    }
}

/// Whose limits a call passes: with two versions at work those of the live one count for both, and are not doubled.
fn gatekeeper<'a>(call: &'a Call<'_>, watched: &'a Watched) -> &'a LoadedModel {
    match (&watched.other, watched.role) {
        (Some(incumbent), Role::Candidate) => &incumbent.model,
        _ => &call.model,
    }
}

/// The time of the run; `None` for a kept answer.
fn run_time(response: &InferResponse) -> Option<Duration> {
    match response.cache {
        Some(CacheOutcome::Hit | CacheOutcome::Joined) => None,
        Some(CacheOutcome::Miss) | None => Some(response.timings.decode + response.timings.compute),
    }
}

fn fault(error: &ServingError) -> Fault {
    match error {
        ServingError::DeadlineExceeded { .. } => Fault::Late,
        ServingError::Misfit(_)
        | ServingError::Features(_)
        | ServingError::BadInput { .. }
        | ServingError::Unavailable { .. }
        | ServingError::ModelFailed { .. } => Fault::Unclear,
        ServingError::Pin(_) | ServingError::Refused(_) | ServingError::Overloaded { .. } | ServingError::NoRoom(_) => {
            Fault::Nobody
        }
    }
}

/// Whether the model failed on what it took.
fn is_of_model(error: &ServingError) -> bool {
    matches!(error, ServingError::ModelFailed { .. } | ServingError::Unavailable { .. })
}

/// An output as it is compared.
fn output<'a>(model: &'a LoadedModel, reference: Option<&str>, name: &str, tensor: &'a Tensor) -> Output<'a> {
    let rows = model.batch_limit.and_then(|_| tensor.shape().first().copied()).unwrap_or(1);
    let labels = model.labels.get(name).map(AsRef::as_ref);
    let of_pipeline = || {
        let scores = model.pipeline.as_ref().and_then(|pipeline| pipeline.scores());
        scores.and_then(|output| model.signature.outputs.get(output)).is_some_and(|port| port.name == name)
    };
    let is_scores = labels.is_some() || reference == Some(name) || of_pipeline();
    Output { tensor, rows, is_scores, labels: labels.unwrap_or_default() }
}

/// Counts the classes that come first in the reference output, if it is among `outputs`.
fn count_classes(observations: &Observations, model: &LoadedModel, outputs: &[(String, Tensor)]) {
    let Some(reference) = observations.config().reference_output.as_deref() else { return };
    if let Some((name, tensor)) = outputs.iter().find(|(name, _)| name == reference)
        && let Some(best) = output(model, Some(reference), name, tensor).best()
    {
        observations.classes(best.into_iter().flatten());
    }
}
