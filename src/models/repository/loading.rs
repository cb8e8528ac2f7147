//! Loads a version: reads its files, chooses a runtime, warms it up, checks it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::principal::Principal;
use ledge_base::telemetry::system::Int8Arithmetic;
use ledge_engine::Runtimes;
use ledge_engine::backend::{CompiledModelCache, ComputeTime, LoadOptions, ModelFiles, Runtime, ZipMapOutput};
use ledge_engine::pipeline::kind::PipelineSection;
use ledge_engine::pipeline::quantization::Quantization;
use ledge_engine::warm_up::WarmUp;
use ledge_identity::sealing::EncryptedFolder;
use ledge_isolation::{Isolation, IsolationSetting};
use ledge_service::audit_event::{AuditEvent, AuditSink};

use super::super::scheduling::instance_spec::{InstanceScale, InstanceSpec, RunObserver};
use super::folder::{self, ModelFolderError, VersionFile, VersionFolder, VersionModel};
use super::golden;
use super::golden_error::GoldenError;
use super::loaded_model::{GoldenFiles, LoadedModel, LoadedPart, ModelDefaults};
use super::model_config::{ModelConfig, RuntimeChoice};
use super::profile::{RunProfile, RunProfileChoice, RunProfileSource};
use super::reader::{ModelReader, own_process};
pub use super::runtime_refusal::RuntimeRefusal;
use super::statistics::VersionStatistics;
use super::{pipeline_check, placement, tuning};
use crate::scheduling::batch_policy::BatchPolicy;
use crate::scheduling::engine::InferScheduler;
use crate::scheduling::faults::ModelFaults;
use crate::scheduling::instance::ModelInstances;
use crate::scheduling::load_terms::InstanceLoadLimit;
use crate::scheduling::queue::QueueLimits;

/// Advice after the reasons of a model that answers its golden inputs wrong on a CPU without VNNI.
const INT8_ADVICE: &str = "; this CPU has no VNNI, and without it OpenVINO gives wrong sums for int8 weights of the full \
                      range: if the model has such, quantize it again (models/quantize makes weights for any CPU), or put \
                      its float32 original next to it as model.float.onnx";

/// The most bytes of inputs that may wait for one model: 400 photographs of 640 kB as tensors.
const DEFAULT_QUEUE_BYTES: usize = 256 << 20;

/// The text before the figures in a profile that was taken from the version before.
const FIGURES_OF: &str = ", which it follows: ";

/// The longest time of the load of an instance, where nothing is known of the loads on this box.
const LOAD_TIME_MAX: Duration = Duration::from_mins(10);

/// Reason why a version could not be loaded. One line for people.
#[derive(Debug, thiserror::Error)]
pub enum VersionLoadError {
    /// The folder or a file in it is at fault.
    #[error(transparent)]
    Folder(#[from] ModelFolderError),
    #[error("{0}")]
    Sealed(String),
    /// No runtime runs it; has the reasons of all that were tried.
    #[error("{}{}", refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "), advice.unwrap_or_default())]
    NoRuntime {
        /// One for each runtime and file tried.
        refusals: Vec<RuntimeRefusal>,
        /// Advice about wrong answers on this CPU.
        advice: Option<&'static str>,
    },
    /// Its load took longer than it may.
    #[error("{0}")]
    TimedOut(String),
    /// Its last load failed, and the next try is not due.
    #[error("{0}")]
    Paused(String),
}

impl VersionLoadError {
    /// True when the version was run and answered its golden inputs wrong, so that another try ends the same. A runtime
    /// that could not check its answers leaves the question open.
    pub fn is_wrong(&self) -> bool {
        let Self::NoRuntime { refusals, .. } = self else { return false };
        let any = |of: fn(&GoldenError) -> bool| {
            refusals.iter().any(|refusal| matches!(refusal, RuntimeRefusal::Golden { error, .. } if of(error)))
        };
        any(|error| matches!(error, GoldenError::Wrong(_))) && !any(|error| matches!(error, GoldenError::Unchecked(_)))
    }

    /// True when the box is at fault: a file that cannot be read, a process that cannot be started.
    pub fn is_of_box(&self) -> bool {
        match self {
            Self::Folder(ModelFolderError::Read { .. } | ModelFolderError::NoProcess { .. }) => true,
            Self::NoRuntime { refusals, .. } => {
                refusals.iter().any(|refusal| matches!(refusal, RuntimeRefusal::NoProcess(_)))
            }
            Self::Folder(_) | Self::Sealed(_) | Self::TimedOut(_) | Self::Paused(_) => false,
        }
    }

    /// True when its process ended for a reason that is not known, as when somebody killed it.
    pub fn is_interrupted(&self) -> bool {
        match self {
            Self::Folder(ModelFolderError::Interrupted { .. }) => true,
            Self::NoRuntime { refusals, .. } => {
                refusals.iter().any(|refusal| matches!(refusal, RuntimeRefusal::Interrupted(_)))
            }
            Self::Folder(_) | Self::Sealed(_) | Self::TimedOut(_) | Self::Paused(_) => false,
        }
    }

    /// True when the cause may pass by itself: a golden input that could not be read or got no answer in time,
    /// encrypted files that cannot be opened now, a process that cannot be started, a load that took too long, or a
    /// pause after one that failed.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Folder(error) => {
                matches!(error, ModelFolderError::NoProcess { .. } | ModelFolderError::Interrupted { .. })
            }
            Self::Sealed(_) | Self::TimedOut(_) | Self::Paused(_) => true,
            Self::NoRuntime { refusals, .. } => refusals.iter().any(RuntimeRefusal::may_pass),
        }
    }
}

/// Files of a version, and everything that is known before it is loaded.
#[derive(Clone)]
pub(super) struct VersionToLoad<'a> {
    pub name: &'a ModelName,
    pub version: ModelVersion,
    /// The folder of its labels and golden inputs: the model's.
    pub folder: &'a Path,
    /// The folder of its own files; possibly the same folder.
    pub files: &'a Path,
    pub config: &'a ModelConfig,
    pub config_text: &'a str,
    /// The least share of the golden inputs that must be answered right; `None` is all of them.
    pub golden_min: Option<f64>,
    pub statistics: Arc<VersionStatistics>,
    /// The encrypted folder, if the two folders above contain its decrypted files.
    pub sealed: Option<&'a EncryptedFolder>,
    /// Set for a version that an update tries: it shares no process until the next start.
    pub on_trial: bool,
    /// The version that it is compared with, if it is one that an update tries.
    pub predecessor: Option<&'a Predecessor>,
}

impl<'a> VersionToLoad<'a> {
    /// A version in plain files, with the folder of its model and its own, that no update tries.
    pub fn new(
        name: &'a ModelName,
        version: ModelVersion,
        (folder, files): (&'a Path, &'a Path),
        (config, config_text): (&'a ModelConfig, &'a str),
    ) -> Self {
        Self {
            name,
            version,
            folder,
            files,
            config,
            config_text,
            golden_min: None,
            statistics: Arc::default(),
            sealed: None,
            on_trial: false,
            predecessor: None,
        }
    }
}

/// The runtime and the profile of a version. A version that an update compares with it runs in the same ones, unless
/// its model config names a runtime: otherwise they would be chosen again, by a few runs at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Predecessor {
    pub version: ModelVersion,
    pub runtime: Runtime,
    /// `None` for one that was never measured here.
    pub profile: Option<RunProfile>,
}

/// Loads a version: into the runtime that its profile names, else into the one that runs it fastest, among those that
/// accept it and give its golden answers. When those that accept it answer wrong, it is loaded with exact instructions
/// for int8 where the CPU's own are not, and at last its float original is loaded instead.
pub(super) async fn load(
    source: VersionToLoad<'_>,
    engine: &InferScheduler,
    defaults: &ModelDefaults,
) -> Result<LoadedModel, VersionLoadError> {
    let folder = read(source.files, source.config, reader(&source, engine, defaults)).await?;
    load_read(source, &folder, engine, defaults, &Arc::new(InstanceLoadLimit::new(LOAD_TIME_MAX)), None).await
}

/// Where a version is to run. The box's setting is a minimum that the model's own file may only raise, because any
/// caller who may upload a model writes that file.
fn isolation(config: &ModelConfig, defaults: &ModelDefaults, on_trial: bool) -> Isolation {
    if on_trial {
        return Isolation::Own;
    }
    config.isolation.map_or(defaults.isolation, |setting| setting.isolation.max(defaults.isolation))
}

/// Reads the files of a version where that is to run.
pub(super) fn reader(source: &VersionToLoad<'_>, engine: &InferScheduler, defaults: &ModelDefaults) -> ModelReader {
    let isolation = isolation(source.config, defaults, source.on_trial);
    ModelReader::of(engine, isolation, source.name, source.version)
}

/// Reads and checks the files of a version; no runtime sees them.
pub(super) async fn read(
    files: &Path,
    config: &ModelConfig,
    reader: ModelReader,
) -> Result<VersionFolder, VersionLoadError> {
    let (path, parts) = (files.to_owned(), config.chain_models());
    let read = tokio::task::spawn_blocking(move || folder::version(&path, parts, reader)).await;
    Ok(read.map_err(|panic| no_runtime(format!("reading the model panicked: {panic}")))??)
}

/// As [`load`], with its files already read, where it is to run. `checked_in` is the runtime in which it passed all its
/// checks on this box, with these very files, `model.toml` and libraries: there only the first golden input is run.
pub(super) fn load_read<'a>(
    source: VersionToLoad<'a>,
    folder: &'a VersionFolder,
    engine: &'a InferScheduler,
    defaults: &'a ModelDefaults,
    terms: &'a Arc<InstanceLoadLimit>,
    checked_in: Option<Runtime>,
) -> BoxFuture<'a, Result<LoadedModel, VersionLoadError>> {
    if let Some(finding) = source.config.isolation.and_then(IsolationSetting::finding) {
        tracing::warn!(model = %source.name, version = %source.version, "isolation in model.toml: {finding}");
    }
    let wanted = isolation(source.config, defaults, source.on_trial);
    load_isolated(source, folder, engine, defaults, (wanted, terms), checked_in)
}

/// Loads and checks a version for the first time, in a separate process of a separate engine, and unloads it. Returns
/// the runtime that passed all checks, see [`LoadedModel::checked_in`].
pub(super) async fn try_first(
    source: VersionToLoad<'_>,
    folder: &VersionFolder,
    engine: &InferScheduler,
    defaults: &ModelDefaults,
    terms: &Arc<InstanceLoadLimit>,
) -> Result<Option<Runtime>, VersionLoadError> {
    let loaded = load_isolated(source, folder, engine, defaults, (Isolation::Own, terms), None).await?;
    let checked_in = loaded.checked_in();
    end(loaded).await;
    Ok(checked_in)
}

fn load_isolated<'a>(
    source: VersionToLoad<'a>,
    folder: &'a VersionFolder,
    engine: &'a InferScheduler,
    defaults: &'a ModelDefaults,
    (isolation, terms): (Isolation, &'a Arc<InstanceLoadLimit>),
    checked_in: Option<Runtime>,
) -> BoxFuture<'a, Result<LoadedModel, VersionLoadError>> {
    // Boxed, so that it is compiled here once and not in every crate that awaits it.
    Box::pin(async move {
        let labels = labels(source.config, source.folder, &folder.model.files.class_maps)?;
        let pipeline_files = pipeline_files(source.config, source.folder)?;
        let runtimes = engine.runtimes();
        let loading = VersionLoading {
            source: &source,
            isolation,
            runtimes: &runtimes,
            model: &folder.model,
            parts: &folder.parts,
            is_fallback: false,
            checked_in,
            // Golden answers of the float model detect wrong sums, so the fast instructions are tried first.
            exact_int8: !source.config.golden.iter().any(|golden| golden.max_relative_error.is_some()),
            digest: &folder.digest,
            files: &folder.files,
            terms,
            labels: &labels,
            pipeline_files: &pipeline_files,
            engine,
            defaults,
        };

        let mut candidates = source.config.runtime.candidates(folder.model.files.format);
        let predecessor = source
            .predecessor
            .filter(|before| source.config.runtime == RuntimeChoice::Auto && candidates.contains(&before.runtime));
        let profile = match predecessor {
            Some(before) => before.profile.clone(),
            None => defaults.profiles.get(&folder.digest, &runtimes),
        };
        let profile = profile.filter(|known| candidates.contains(&known.choice.runtime));
        if let Some(known) = &profile {
            // The others stay: a runtime that was the best and is broken now must not be an outage.
            candidates.sort_by_key(|runtime| *runtime != known.choice.runtime);
        }

        if let Some(before) = predecessor {
            candidates.sort_by_key(|runtime| *runtime != before.runtime);
        } else if !folder.parts.is_empty() {
            // The networks of chains are faster in OpenVINO: a page took 11.3 s of CPU there, and 16.5 s in ONNX
            // Runtime. Runs on zeros would not show the difference.
            candidates.sort_by_key(|runtime| *runtime != Runtime::OpenVino);
        }
        let measure = defaults.measure
            && profile.is_none()
            && predecessor.is_none()
            && candidates.len() > 1
            && folder.parts.is_empty();
        let has_exact =
            candidates.contains(&Runtime::OnnxRuntime) && Int8Arithmetic::here() == Int8Arithmetic::Saturates;
        let (mut loaded, mut refusals) = loading.load_in_each(candidates, profile.as_ref(), measure).await;
        if loaded.is_empty() && refusals.iter().any(RuntimeRefusal::is_wrong) && has_exact && !loading.exact_int8 {
            let exact = VersionLoading { exact_int8: true, ..loading };
            let (found, others) = exact.load_in_each(vec![Runtime::OnnxRuntime], None, false).await;
            loaded = found;
            refusals.extend(others);
        }

        if loaded.is_empty()
            && refusals.iter().any(RuntimeRefusal::is_wrong)
            && let Some(model) = &folder.fallback
        {
            let fallback = VersionLoading { model, is_fallback: true, ..loading };
            // The profile is of the model itself, and no profile is made from its float original.
            let candidates = source.config.runtime.candidates(model.files.format);
            let (found, others) = fallback.load_in_each(candidates, None, false).await;
            loaded = found;
            refusals.extend(others.into_iter().map(|refusal| refusal.of_file(&file_name(&model.files))));
        }

        let chosen = if measure { choose(loaded, &runtimes, defaults).await } else { loaded.pop() };
        let Some(mut model) = chosen else {
            let is_wrong = refusals.iter().any(RuntimeRefusal::is_wrong);
            let advice = (is_wrong && Int8Arithmetic::here() == Int8Arithmetic::Saturates).then_some(INT8_ADVICE);
            return Err(VersionLoadError::NoRuntime { refusals, advice });
        };

        for reason in refusals.iter().filter(|refusal| !refusal.is_wrong()) {
            tracing::info!(model = %source.name, version = %source.version, %reason, "a runtime cannot run this version and is not used");
        }
        model.passed_over = refusals.into_iter().filter(RuntimeRefusal::is_wrong).collect();
        if model.profile.is_none() && !model.is_fallback {
            model.profile = profile.filter(|known| known.choice.runtime == model.runtime());
            if let Some(before) = predecessor.filter(|before| before.runtime == model.runtime()) {
                keep_profile_of(before, &mut model, &runtimes, defaults);
            }
        }
        if let Some(stand_in) = model.stand_in() {
            tracing::warn!(name: "model.stand_in_loaded", model = %source.name, version = %source.version, "{stand_in}");
        }
        model.count_runs();
        Ok(model)
    })
}

/// Keeps the quickest of `loaded`, and saves the choice.
async fn choose(mut loaded: Vec<LoadedModel>, runtimes: &Runtimes, defaults: &ModelDefaults) -> Option<LoadedModel> {
    if loaded.len() < 2 {
        // Nothing to choose from, and perhaps only for now.
        return loaded.pop();
    }
    // A model that cannot be measured runs in the first.
    let (best, times) = tuning::quickest(&loaded).await.unwrap_or_default();
    let figure =
        |(model, time): (&LoadedModel, &Duration)| format!("{} {:.3} ms", model.runtime(), time.as_secs_f64() * 1e3);
    let measured = loaded.iter().zip(&times).map(figure).collect::<Vec<_>>().join(", ");
    let mut model = loaded.swap_remove(best);
    for other in loaded {
        end(other).await;
    }
    let scale = model.scale();
    let choice = RunProfileChoice { runtime: model.runtime(), threads: scale.threads, instances: scale.max, batch: 1 };
    tracing::info!(
        name: "model.measured",
        model = %model.name,
        version = %model.version,
        chosen = %choice.runtime,
        measured,
        "runtimes compared"
    );
    let profile = RunProfile { choice, effort: RunProfileSource::Quick, goal: "latency".to_owned(), measured };
    if let Err(error) = defaults.profiles.put(&model.digest, runtimes, &profile) {
        tracing::warn!(model = %model.name, %error, "cannot save the choice of a runtime; the next load measures again");
    }
    model.profile = Some(profile);
    Some(model)
}

/// Saves the profile of the version before as that of `model`, for its next loads.
fn keep_profile_of(before: &Predecessor, model: &mut LoadedModel, runtimes: &Runtimes, defaults: &ModelDefaults) {
    let scale = model.scale();
    let own = RunProfileChoice { runtime: model.runtime(), threads: scale.threads, instances: scale.max, batch: 1 };
    let profile = model.profile.take().unwrap_or_else(|| RunProfile {
        choice: own,
        effort: RunProfileSource::Quick,
        goal: "latency".to_owned(),
        measured: String::new(),
    });
    let figures = profile.measured.split_once(FIGURES_OF).map_or(profile.measured.as_str(), |(_, figures)| figures);
    let measured = format!("as version {}{FIGURES_OF}{figures}", before.version);
    let profile = RunProfile { measured, ..profile };
    if let Err(error) = defaults.profiles.put(&model.digest, runtimes, &profile) {
        tracing::warn!(model = %model.name, %error, "cannot save the runtime of the version before; the next start measures");
    }
    model.profile = Some(profile);
}

/// Ends a model and waits until its memory is freed. A process that ends while a runtime still tears a model down
/// crashes.
pub(super) async fn end(model: LoadedModel) {
    let ended = model.ended();
    drop(model);
    ended.await;
}

async fn end_instances(all: impl Iterator<Item = ModelInstances>) {
    for instances in all {
        let ended = instances.ended();
        drop(instances);
        ended.await;
    }
}

#[derive(Clone, Copy)]
struct VersionLoading<'a> {
    source: &'a VersionToLoad<'a>,
    isolation: Isolation,
    runtimes: &'a Runtimes,
    /// The model to load: the version's own, or its fallback.
    model: &'a VersionModel,
    /// The models of a chain, the first of which is `model`.
    parts: &'a [(&'static str, VersionModel)],
    is_fallback: bool,
    /// See [`load_read`].
    checked_in: Option<Runtime>,
    /// See [`LoadOptions::exact_int8`].
    exact_int8: bool,
    /// Of all files of the version.
    digest: &'a str,
    files: &'a [VersionFile],
    terms: &'a Arc<InstanceLoadLimit>,
    labels: &'a HashMap<String, Arc<[String]>>,
    pipeline_files: &'a HashMap<String, Bytes>,
    engine: &'a InferScheduler,
    defaults: &'a ModelDefaults,
}

impl VersionLoading<'_> {
    /// Loads the version into the first of `runtimes` that takes it, or with `all` into each.
    async fn load_in_each(
        &self,
        runtimes: Vec<Runtime>,
        profile: Option<&RunProfile>,
        all: bool,
    ) -> (Vec<LoadedModel>, Vec<RuntimeRefusal>) {
        let (mut loaded, mut refusals) = (Vec::new(), Vec::new());
        for runtime in runtimes {
            // A quick comparison measured nothing but the runtime.
            let tuned =
                profile.filter(|known| known.effort == RunProfileSource::Tuned && known.choice.runtime == runtime);
            match self.load_in(runtime, tuned.map(|known| known.choice)).await {
                Ok(model) => loaded.push(model),
                Err(refusal) => refusals.push(refusal),
            }
            if !all && !loaded.is_empty() {
                break;
            }
        }
        (loaded, refusals)
    }

    /// The model config. Its quantization holds for the model's own file, not for the float original.
    fn config(&self) -> Cow<'_, ModelConfig> {
        let mut config = Cow::Borrowed(self.source.config);
        if self.is_fallback {
            let config = config.to_mut();
            config.input.iter_mut().chain(&mut config.output).for_each(|port| port.quantization = None);
        }
        config
    }

    /// Values of the integers of inputs and outputs: as `config` says, else as the file does.
    fn quantization(&self, config: &ModelConfig) -> HashMap<String, Quantization> {
        let declared = config.input.iter().chain(&config.output);
        let declared = declared.filter_map(|port| Some((port.name.clone(), port.quantization?)));
        self.model.quantization.clone().into_iter().chain(declared).collect()
    }

    /// The instances of one model of the version.
    fn spec(
        &self,
        files: &ModelFiles,
        runtime: Runtime,
        (workers, scale): (Vec<usize>, InstanceScale),
        faults: &Arc<ModelFaults>,
    ) -> InstanceSpec {
        let (config, defaults) = (self.source.config, self.defaults);
        InstanceSpec {
            name: self.source.name.to_string(),
            own_process: own_process(self.source.name, self.source.version),
            runtimes: self.runtimes.clone(),
            runtime,
            files: files.clone(),
            sealed: self.source.sealed.cloned(),
            // The compiled models in OpenVINO's cache contain the weights, so an encrypted model is not cached.
            options: LoadOptions {
                threads: scale.threads,
                cache: defaults
                    .cache_dir
                    .as_ref()
                    .filter(|_| self.source.sealed.is_none())
                    .map_or(CompiledModelCache::None, |folder| CompiledModelCache::Shared(folder.join(self.digest))),
                exact_int8: self.exact_int8,
                is_part: !self.parts.is_empty(),
            },
            scale,
            limits: QueueLimits {
                jobs: config.queue.max_size.unwrap_or(defaults.max_queue_size),
                bytes: config.queue.max_bytes.unwrap_or(DEFAULT_QUEUE_BYTES),
            },
            workers,
            observer: Arc::new(CountingObserver {
                statistics: self.source.statistics.clone(),
                on: AtomicBool::new(false),
                model: self.source.name.clone(),
                version: self.source.version,
                audit: defaults.audit.clone(),
            }),
            warm_up: OnceLock::new(),
            isolation: self.isolation,
            faults: faults.clone(),
            load_terms: self.terms.clone(),
            time_limit: config.queue.default_timeout_ms.map_or(defaults.timeout, Duration::from_millis),
        }
    }

    /// Loads the version into one runtime. `choice` decides the settings that the model config leaves open.
    async fn load_in(&self, runtime: Runtime, choice: Option<RunProfileChoice>) -> Result<LoadedModel, RuntimeRefusal> {
        let (config, defaults) = (&self.config(), self.defaults);
        let cores = self.engine.cores();
        let (workers, scale) = placement::place(&config.instance_group, cores, defaults.keep_alive, choice)?;
        let faults = Arc::new(ModelFaults::new(!config.golden.is_empty()));
        let spec = |files| self.spec(files, runtime, (workers.clone(), scale), &faults);

        let instances = ModelInstances::start(self.engine, spec(&self.model.files)).await?;
        let mut parts = vec![];
        for (name, read) in self.parts.iter().skip(1) {
            match ModelInstances::start(self.engine, spec(&read.files)).await {
                Ok(instances) => parts.push(LoadedPart { name, instances }),
                Err(error) => {
                    end_instances(std::iter::once(instances).chain(parts.into_iter().map(|part| part.instances))).await;
                    return Err(RuntimeRefusal::Load(format!("{name}: {error}")));
                }
            }
        }
        let completed = config.complete(instances.signature()).map_err(|mistakes| mistakes.join("; "));
        let completed = completed.and_then(|signature| Ok((config.batch_limit(&signature)?, signature)));
        let (batch_limit, signature) = match completed {
            Ok(completed) => completed,
            Err(reason) => {
                end_instances(std::iter::once(instances).chain(parts.into_iter().map(|part| part.instances))).await;
                return Err(RuntimeRefusal::Load(reason));
            }
        };
        let mut model = LoadedModel {
            name: self.source.name.clone(),
            version: self.source.version,
            profile: None,
            digest: self.digest.to_owned(),
            files: self.files.to_owned(),
            file: file_name(&self.model.files),
            is_fallback: self.is_fallback,
            exact_int8: self.exact_int8,
            passed_over: Vec::new(),
            folder: self.source.sealed.map_or(self.source.files, EncryptedFolder::home).to_owned(),
            config_text: self.source.config_text.to_owned(),
            config: config.clone().into_owned(),
            batch_limit,
            signature,
            labels: self.labels.clone(),
            pipeline_files: self.pipeline_files.clone(),
            quantization: self.quantization(config),
            pipeline: None,
            timeout: config.queue.default_timeout_ms.map_or(defaults.timeout, Duration::from_millis),
            statistics: self.source.statistics.clone(),
            attached: OnceLock::new(),
            golden_files: GoldenFiles {
                folder: self.source.folder.to_owned(),
                min: self.source.golden_min,
                sealed: self.source.sealed.cloned(),
            },
            instances,
            parts,
            part_metadata: self.parts.iter().map(|(name, read)| ((*name).to_owned(), read.metadata.clone())).collect(),
        };
        let checked = match model.bind_config() {
            Ok(()) => {
                // The sample warms a chain up, in the sizes of a page.
                if !model.is_chain() {
                    warm_up(&model, choice).await;
                }
                self.check(&model).await
            }
            Err(reason) => Err(RuntimeRefusal::Load(reason)),
        };
        match checked {
            Ok(()) => Ok(model),
            Err(refusal) => {
                end(model).await;
                Err(refusal)
            }
        }
    }

    /// Checks that the pipeline of `model` can answer, and its golden inputs. Only the first one is run if the model
    /// passed all checks on this box and nothing has changed since.
    async fn check(&self, model: &LoadedModel) -> Result<(), RuntimeRefusal> {
        let (source, runtime) = (self.source, model.runtime());
        let is_checked = !self.is_fallback && self.checked_in == Some(runtime);
        if is_checked && golden::is_first_right(model, source.folder).await {
            return Ok(());
        }
        pipeline_check::check(model).await.map_err(|error| RuntimeRefusal::of_pipeline_check(runtime, error))?;
        let checked = golden::check(model, source.folder, source.golden_min).await;
        checked.map_err(|error| RuntimeRefusal::Golden { runtime, error })
    }
}

/// Runs the model on zeros, in every batch size that it will be run in, and only then allows batching.
async fn warm_up(model: &LoadedModel, choice: Option<RunProfileChoice>) {
    let policy = batch_policy(&model.config, choice, model.batch_limit);
    let sizes = policy.as_ref().map_or(&[][..], |policy| &policy.preferred).to_vec();
    let warm_up = WarmUp { signature: model.signature.clone(), sizes };
    // A golden input warms a single row up.
    if policy.is_some() || model.config.golden.is_empty() {
        golden::warm_up(model, &warm_up).await;
    }
    model.instances.warm_up_with(warm_up);
    if let Some(policy) = policy {
        model.instances.set_batching(policy);
    }
}

/// Returns the batch policy: as the model config says, else as it was measured to be best; `None` is no batching.
fn batch_policy(config: &ModelConfig, choice: Option<RunProfileChoice>, limit: Option<usize>) -> Option<BatchPolicy> {
    let limit = limit?;
    let Some(batching) = &config.dynamic_batching else {
        let batch = choice.map_or(1, |choice| choice.batch.min(limit));
        return (batch > 1).then(|| BatchPolicy::powers_of_two(batch, Duration::ZERO));
    };
    let mut policy = BatchPolicy::powers_of_two(limit, Duration::from_micros(batching.max_queue_delay_us));
    if !batching.preferred_batch_sizes.is_empty() {
        policy.preferred.clone_from(&batching.preferred_batch_sizes);
        policy.preferred.sort_unstable();
    }
    Some(policy)
}

/// Counts runs into a version's statistics once it serves: warm-up and measurements are not requests.
struct CountingObserver {
    statistics: Arc<VersionStatistics>,
    on: AtomicBool,
    model: ModelName,
    version: ModelVersion,
    audit: AuditSink,
}

impl RunObserver for CountingObserver {
    fn executed(&self, rows: usize, time: ComputeTime, cpu: Duration) {
        if self.on.load(Ordering::Relaxed) {
            self.statistics.executed(rows, time, cpu);
        }
    }

    fn prepared(&self, cpu: Duration) {
        if self.on.load(Ordering::Relaxed) {
            self.statistics.prepared(cpu);
        }
    }

    fn crashed(&self, _: &str, unloaded: Option<&str>) {
        self.statistics.crashed();
        // Before it serves, the end of its process is the reason of a load that fails.
        if !self.on.load(Ordering::Relaxed) {
            return;
        }
        let (model, version) = (self.model.clone(), self.version);
        self.audit.record_own(AuditEvent::ModelCrashed { model, version, suspended: unloaded.is_some() });
    }

    fn cancelled(&self) {
        self.statistics.cancelled();
    }

    fn refused(&self, caller: &Principal, time: Duration) {
        let (model, version) = (self.model.clone(), self.version);
        tracing::warn!(%model, %version, principal = %caller, seconds = time.as_secs(),
            "a caller is refused for a model, because its calls ended the process of the model");
        self.audit.record(caller, AuditEvent::CallerRefused { model, version, seconds: time.as_secs() });
    }

    fn start(&self) {
        self.on.store(true, Ordering::Relaxed);
    }
}

fn no_runtime(reason: String) -> VersionLoadError {
    VersionLoadError::NoRuntime { refusals: vec![RuntimeRefusal::Load(reason)], advice: None }
}

fn file_name(files: &ModelFiles) -> String {
    files.model.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The class names of outputs: from the label files of the model config, else from the model's own file.
pub(super) fn labels(
    config: &ModelConfig,
    folder: &Path,
    class_maps: &[ZipMapOutput],
) -> Result<HashMap<String, Arc<[String]>>, ModelFolderError> {
    let own = class_maps.iter().map(|map| Ok((map.output.clone(), map.classes.clone().into())));
    let named = config.output.iter().filter_map(|output| Some((&output.name, output.labels.as_ref()?)));
    own.chain(named.map(|(name, file)| Ok((name.clone(), folder::labels(folder, file)?.into())))).collect()
}

/// The content of the files that the model's pipeline needs.
pub(super) fn pipeline_files(config: &ModelConfig, folder: &Path) -> Result<HashMap<String, Bytes>, ModelFolderError> {
    let named = config.pipeline.section().map(PipelineSection::files).unwrap_or_default();
    named.into_iter().map(|(_, file)| Ok((file.to_owned(), folder::pipeline_file(folder, file)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_config_goes_before_what_was_measured() {
        let choice = Some(RunProfileChoice { runtime: Runtime::OpenVino, threads: 1, instances: 2, batch: 16 });
        let config = |text| ModelConfig::parse("t", text).unwrap();
        let preferred = |text, limit| batch_policy(&config(text), choice, limit).map(|policy| policy.preferred);
        assert_eq!(preferred("", Some(4)), Some(vec![1, 2, 4]));
        assert_eq!(preferred("", None), None);
        assert_eq!(preferred("[dynamic_batching]\npreferred_batch_sizes = [8, 3]", Some(64)), Some(vec![3, 8]));
        assert_eq!(batch_policy(&config(""), None, Some(64)), None);
    }
}
