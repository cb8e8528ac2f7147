//! Requests that an update watches: answered as any other, counted for the version that answered, and repeated on the
//! other version in the background.
//!
//! A repeated request leaves no trace except in the update's own counts: it passes no quota and no limit, is not
//! audited as a call, and neither reads nor fills a response cache. A request that a cache answered is mirrored like
//! any other: the requests of callers count, and a model with a well-filled cache would otherwise be judged by its
//! rarest requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::principal::Principal;
use ledge_base::tensor::Tensor;
use ledge_engine::backend::ModelRunError;
use tokio::sync::OwnedSemaphorePermit;

use super::super::scheduling::outcome::{FailureClass, InferError, LateAnswer};
use super::answer::{content_pipeline, run, run_content};
use super::call::CountedCall;
use super::request::{CacheOutcome, InferRequest, InferResponse, OutputRequest, Payload, TensorPayload, Timings};
use super::{NamedOutputs, Serving, finish, inputs};
use crate::repository::LoadedModel;
use crate::repository::agreement;
use crate::repository::candidate::{MirrorVersion, WatchedCall};
use crate::repository::observations::{ComparedVersion, ObservationConfig, Observations};
use crate::repository::trial_mark::TrialWorkGuard;
use crate::scheduling::terms::{Priority, RunTerms};
use crate::serving::error::ServingError;

/// Time that a repeated request may wait and run.
const REPEATED_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Cause of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailureCause {
    /// The version, unless the other one fails on the same request.
    Unclear,
    /// The version, if its run takes longer than the model's own timeout.
    Late,
    /// Neither version: none was asked, or this box had no time for it.
    Unrelated,
}

impl Serving {
    /// As [`Serving::infer`], for a call that is watched.
    pub(super) async fn infer_watched(
        &self,
        call: CountedCall<'_>,
        watched: WatchedCall,
        request: InferRequest,
    ) -> Result<InferResponse, ServingError> {
        let again = watched.other.is_some().then(|| repeated(&request));
        let _run = begin_run(&watched);
        let mut outputs = Vec::new();
        let mut answered = match self.admit(&call, limiting_model(&call, &watched), request.priority) {
            Ok(_permit) => self.infer_admitted(&call, request, Some(&mut outputs)).await,
            Err(refused) => Err(refused.into()),
        };
        let seen = answered.as_mut().map(|(response, _)| (outputs, run_time(response)));
        self.observe(&call, watched, again, seen);
        finish(call, answered)
    }

    /// Counts the result of a request on `model`, and repeats it on the other version where the update needs that.
    fn observe(
        &self,
        call: &CountedCall<'_>,
        watched: WatchedCall,
        again: Option<InferRequest>,
        seen: Result<(NamedOutputs, Option<Duration>), &mut ServingError>,
    ) {
        let WatchedCall { observations, role, other } = watched;
        let (model, other) = (&call.model, other.zip(again));
        match (seen, other) {
            (Ok((outputs, time)), other) => match (role, other) {
                (ComparedVersion::Candidate, other) => {
                    count_classes(&observations, model, &outputs);
                    match other {
                        _ if !has_non_finite(&outputs) => observations.answered(role, time),
                        Some((other, again)) => self.repeat_not_finite(other, again, observations, time),
                        None if !call.is_input_odd() && observations.incumbent_is_finite() => {
                            observations.answered_not_finite(role, time);
                        }
                        None => observations.answered(role, time),
                    }
                }
                (ComparedVersion::Incumbent, other) => {
                    count_incumbent(&observations, &outputs, time);
                    if let Some((other, again)) = other {
                        self.mirror(model, other, again, outputs, observations);
                    }
                }
            },
            (Err(error), other) => match failure_cause(error) {
                FailureCause::Unrelated => {}
                FailureCause::Late => {
                    if let ServingError::Run { waited, error: InferError::DeadlineExceeded { run, .. }, .. } = error
                        && let Some(run) = run.take()
                    {
                        self.count_late(model, role, (run, *waited), other, observations);
                    }
                }
                // Without another version to ask, a failure counts against the model only when the model had accepted
                // the request.
                FailureCause::Unclear
                    if (role == ComparedVersion::Incumbent || other.is_none()) && !is_of_model(error) => {}
                FailureCause::Unclear => self.count_failure(role, other, observations, is_crash(error)),
            },
        }
    }

    /// Counts a failure of `role`. One of the candidate counts only if the incumbent answers the same request, where it
    /// can be asked.
    fn count_failure(
        &self,
        role: ComparedVersion,
        other: Option<(MirrorVersion, InferRequest)>,
        observations: Arc<Observations>,
        is_crash: bool,
    ) {
        match (role, other) {
            (ComparedVersion::Candidate, Some((other, again))) => {
                self.repeat_on_incumbent(other, again, observations, is_crash);
            }
            _ => count_failed(&observations, role, is_crash),
        }
    }

    /// Counts a request after its deadline, once its run has ended: as failed when the run took longer than the model's
    /// own timeout, and as answered otherwise. A request that got no run while it waited does not count: a busy machine
    /// and a short deadline say nothing about the version.
    fn count_late(
        &self,
        model: &Arc<LoadedModel>,
        role: ComparedVersion,
        (run, waited): (LateAnswer, Duration),
        other: Option<(MirrorVersion, InferRequest)>,
        observations: Arc<Observations>,
    ) {
        // The model itself is not held: an unload must not wait for this.
        let (serving, timeout) = (self.clone(), model.timeout);
        let stop = other.as_ref().map(|(other, _)| other.stop.clone()).unwrap_or_default();
        self.mirrors.spawn(async move {
            let ended = tokio::select! {
                ended = tokio::time::timeout(timeout.max(REPEATED_REQUEST_TIMEOUT), run.ended()) => ended,
                () = stop.cancelled() => return,
            };
            let time = match ended {
                Ok(Some(Ok(answer))) => answer.prepare + answer.run.time.total(),
                // Cancelled at the model's own limit, and not at an earlier one of its caller.
                Ok(Some(Err(InferError::Run(ModelRunError::Cancelled)))) if waited >= timeout => Duration::MAX,
                Ok(Some(Err(InferError::Run(ModelRunError::Runtime { .. })))) | Err(_) => Duration::MAX,
                Ok(Some(Err(_)) | None) => return,
            };
            if time <= timeout {
                observations.answered(role, Some(time));
            } else {
                serving.count_failure(role, other, observations, false);
            }
        });
    }

    /// Repeats on the candidate a request that `live` has answered with `outputs`, and compares. A request that comes
    /// while all places are taken is skipped, so that mirrored requests do not pile up.
    fn mirror(
        &self,
        live: &Arc<LoadedModel>,
        other: MirrorVersion,
        asked: InferRequest,
        outputs: NamedOutputs,
        observations: Arc<Observations>,
    ) {
        let Ok(place) = other.places.clone().try_acquire_owned() else {
            observations.skipped();
            return;
        };

        let candidate = other.model.clone();
        let asked = with_output(asked, &candidate, observations.config().reference_output.as_deref());
        let in_order = matches!(asked.payload, Payload::Content(..));

        // An unload must not wait for this.
        let live = Arc::downgrade(live);
        let run = observations.begin_run();
        self.repeat(other, place, asked, Priority::Batch, observations.clone(), move |answer| {
            match answer {
                Ok(response) => {
                    let is_fault = has_non_finite(&response.outputs) && !has_non_finite(&outputs);
                    if is_fault {
                        observations.answered_not_finite(ComparedVersion::Candidate, run_time(&response));
                    } else {
                        observations.answered(ComparedVersion::Candidate, run_time(&response));
                    }
                    count_classes(&observations, &candidate, &response.outputs);
                    if let Some(live) = live.upgrade() {
                        let pair = [(&*live, &*outputs), (&*candidate, &*response.outputs)];
                        let ObservationConfig { reference_output, tolerance } = observations.config();
                        let agree = agreement::answers_agree(pair, reference_output.as_deref(), in_order, *tolerance);
                        observations.compared(agree);
                    }
                }
                // Background work comes last, so a mirrored call without a turn says nothing about the candidate.
                Err(error) if had_no_turn(&error) => observations.skipped(),
                Err(error) => {
                    tracing::debug!(model = %candidate.name, version = %candidate.version, %error, "a candidate failed in shadow");
                    count_failed(&observations, ComparedVersion::Candidate, is_crash(&error));
                }
            }
            drop(run);
        });
    }

    /// Repeats on the incumbent a request that the candidate has failed: the failure counts when the incumbent has an
    /// answer.
    fn repeat_on_incumbent(
        &self,
        other: MirrorVersion,
        asked: InferRequest,
        observations: Arc<Observations>,
        is_crash: bool,
    ) {
        let Ok(place) = other.places.clone().try_acquire_owned() else {
            // A candidate that is at fault fails again when there is a place.
            observations.skipped();
            return;
        };
        // It has the priority of the failed request: as background work it could wait for long.
        self.repeat(other, place, asked, Priority::Interactive, observations.clone(), move |answer| {
            match answer.as_ref().map_err(failure_cause) {
                Ok(_) => count_failed(&observations, ComparedVersion::Candidate, is_crash),
                Err(FailureCause::Unclear) => {}
                Err(FailureCause::Late | FailureCause::Unrelated) => observations.skipped(),
            }
        });
    }

    /// Repeats on the incumbent a request that the candidate has answered with values that are not finite: a failure
    /// when the incumbent has others.
    fn repeat_not_finite(
        &self,
        other: MirrorVersion,
        asked: InferRequest,
        observations: Arc<Observations>,
        time: Option<Duration>,
    ) {
        let Ok(place) = other.places.clone().try_acquire_owned() else {
            observations.skipped();
            return;
        };
        self.repeat(other, place, asked, Priority::Interactive, observations.clone(), move |answer| match answer {
            Ok(response) if !has_non_finite(&response.outputs) => {
                observations.answered_not_finite(ComparedVersion::Candidate, time);
            }
            Ok(_) => observations.answered(ComparedVersion::Candidate, time),
            Err(_) => observations.skipped(),
        });
    }

    /// Repeats the request on `other` in the background and passes the result to `then`, unless the candidate is
    /// removed meanwhile.
    fn repeat(
        &self,
        other: MirrorVersion,
        place: OwnedSemaphorePermit,
        asked: InferRequest,
        priority: Priority,
        observations: Arc<Observations>,
        then: impl FnOnce(Result<InferResponse, ServingError>) + Send + 'static,
    ) {
        let (serving, MirrorVersion { model, stop, .. }) = (self.clone(), other);
        self.mirrors.spawn(async move {
            tokio::select! {
                answer = serving.run_repeated(&model, asked, priority, &observations) => then(answer),
                () = stop.cancelled() => {}
            }
            drop(place);
        });
    }

    /// Runs `model` for the box itself, without the cache.
    async fn run_repeated(
        &self,
        model: &LoadedModel,
        asked: InferRequest,
        priority: Priority,
        observations: &Observations,
    ) -> Result<InferResponse, ServingError> {
        let started = Instant::now();
        let deadline = started + model.timeout.min(REPEATED_REQUEST_TIMEOUT);
        let terms = RunTerms { deadline, priority, principal: Principal::Local };
        let (answer, names) = match asked.payload {
            Payload::Tensors(TensorPayload { inputs, features, outputs }) => {
                let account = self.memory.account(Principal::Local);
                let (inputs, _) = self.with_features(model, inputs, features, &terms, (started, &account)).await?;
                let fitted = inputs::fit(model, inputs, outputs.as_deref())?;
                let names = model.output_names(&fitted.outputs);
                observations.keep_input(&fitted.inputs);
                (run(model, fitted, terms, started).await?, names)
            }
            Payload::Content(content, _) => {
                let (pipeline, account) = (content_pipeline(model, content.input())?, asked.account);
                let content = self.with_feature_cells(model, pipeline, content, &terms.principal, &account).await?;
                let answer = run_content(model, pipeline, (content, account), self.limits, terms, started).await?;
                (answer, model.result_names(pipeline.as_ref()))
            }
        };
        Ok(answer.into_response(model, names).0)
    }
}

/// The request as it is repeated: with the outputs themselves in the place of classes. It shares the bytes.
fn repeated(request: &InferRequest) -> InferRequest {
    let mut again = request.clone();
    if let Payload::Tensors(TensorPayload { outputs: Some(wanted), .. }) = &mut again.payload {
        for output in wanted {
            output.classification = None;
        }
    }
    again
}

/// Requests this output too, if `model` has it.
fn with_output(mut asked: InferRequest, model: &LoadedModel, output: Option<&str>) -> InferRequest {
    if let (Payload::Tensors(TensorPayload { outputs: Some(wanted), .. }), Some(output)) = (&mut asked.payload, output)
        && model.signature.outputs.iter().any(|port| port.name == output)
        && !wanted.iter().any(|wanted| wanted.name == output)
    {
        wanted.push(OutputRequest { name: output.to_owned(), classification: None });
    }
    asked
}

fn has_non_finite(outputs: &[(String, Tensor)]) -> bool {
    outputs.iter().any(|(_, tensor)| tensor.has_non_finite())
}

fn count_incumbent(observations: &Observations, outputs: &[(String, Tensor)], time: Option<Duration>) {
    if has_non_finite(outputs) {
        observations.answered_not_finite(ComparedVersion::Incumbent, time);
    } else {
        observations.answered(ComparedVersion::Incumbent, time);
    }
}

fn count_failed(observations: &Observations, role: ComparedVersion, is_crash: bool) {
    if is_crash {
        observations.crashed(role);
    } else {
        observations.failed(role);
    }
}

fn is_crash(error: &ServingError) -> bool {
    error.class() == Some(FailureClass::Crashed)
}

/// True for a run that was not begun, or not ended, for want of time or memory.
fn had_no_turn(error: &ServingError) -> bool {
    matches!(error, ServingError::NoRoom(_))
        || matches!(error.class(), Some(FailureClass::Overloaded | FailureClass::DeadlineExceeded))
}

/// Begins a run that is marked where it is the candidate's first.
fn begin_run(watched: &WatchedCall) -> Option<TrialWorkGuard> {
    (watched.role == ComparedVersion::Candidate).then(|| watched.observations.begin_run()).flatten()
}

/// Returns the version with the limits that apply to a call. With two versions at work, the limits of the live one
/// apply to both together.
fn limiting_model<'a>(call: &'a CountedCall<'_>, watched: &'a WatchedCall) -> &'a LoadedModel {
    match (&watched.other, watched.role) {
        (Some(incumbent), ComparedVersion::Candidate) => &incumbent.model,
        _ => &call.model,
    }
}

/// The CPU time of the run where it is known, and its time otherwise; `None` for a cached answer.
fn run_time(response: &InferResponse) -> Option<Duration> {
    match response.cache {
        Some(CacheOutcome::Hit | CacheOutcome::Joined) => None,
        Some(CacheOutcome::Miss) | None => {
            let Timings { decode, compute, cpu, .. } = response.timings;
            Some(if cpu.is_zero() { decode + compute } else { cpu })
        }
    }
}

fn failure_cause(error: &ServingError) -> FailureCause {
    match error {
        ServingError::InvalidRequest(_) | ServingError::Features(_) => FailureCause::Unclear,
        ServingError::Pin(_) | ServingError::Content(_) | ServingError::Refused(_) | ServingError::NoRoom(_) => {
            FailureCause::Unrelated
        }
        ServingError::Run { error, .. } => match error.class() {
            FailureClass::DeadlineExceeded => FailureCause::Late,
            FailureClass::BadInput | FailureClass::Unavailable | FailureClass::Crashed | FailureClass::Failed => {
                FailureCause::Unclear
            }
            FailureClass::Blamed | FailureClass::Overloaded | FailureClass::NoRoom => FailureCause::Unrelated,
        },
    }
}

/// True when the model failed on a request that it had accepted.
fn is_of_model(error: &ServingError) -> bool {
    matches!(error.class(), Some(FailureClass::Failed | FailureClass::Unavailable | FailureClass::Crashed))
}

/// Counts the classes that come first in the reference output, if it is among `outputs`.
fn count_classes(observations: &Observations, model: &LoadedModel, outputs: &[(String, Tensor)]) {
    let Some(reference) = observations.config().reference_output.as_deref() else { return };
    if let Some((name, tensor)) = outputs.iter().find(|(name, _)| name == reference)
        && let Some(best) = agreement::output(model, Some(reference), name, tensor).best()
    {
        observations.classes(best.into_iter().flatten());
    }
}
