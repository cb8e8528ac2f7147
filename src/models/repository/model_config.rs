//! The model config, `<model>/model.toml`. Every key is optional, and so is the file.

use ledge_base::names::ModelVersion;
use ledge_base::toml_check::{self, ConfigMistake, ValueProblem};
use ledge_engine::backend::{ModelFormat, ModelPort, ModelSignature, Runtime};
use ledge_engine::pipeline::PipelineConfig;
use ledge_engine::pipeline::content::PipelineInput;
use ledge_engine::pipeline::kind::{ChainModel, PipelineKind, PipelineSection};
use ledge_engine::pipeline::ocr::fields::DocumentFieldDeclaration;
use ledge_engine::pipeline::quantization::Quantization;
use ledge_engine::pipeline::sections_of;
use ledge_isolation::IsolationSetting;
use serde::{Deserialize, Serialize};

use super::feature_config::{FeaturePolicies, FeaturePolicy};
use super::feature_elements::{FeatureElements, has_nan};
pub use super::golden_config::GoldenConfig;
use super::golden_config::is_beside;
pub use super::limits_config::{CallLimits, ModelCacheConfig};
pub use super::port_config::PortConfig;
pub use ledge_base::token_bucket::CallRate;

/// The largest batch of a model that has a variable first dimension and does not say otherwise.
pub const DEFAULT_MAX_BATCH_SIZE: usize = 64;

/// The content of a `model.toml`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelConfig {
    /// Description of the model, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The licence of the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// The origin of the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The measured accuracy, with the data that it was measured on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<String>,
    /// The model's own semantic version. Metadata: the number of the folder decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    #[serde(skip_serializing_if = "ModelKind::is_model")]
    pub kind: ModelKind,
    pub runtime: RuntimeChoice,
    /// The process that it runs in, where that is more than `runtimes.isolation` of the daemon's configuration asks
    /// for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationSetting>,
    /// The most batch elements in one request; 0 says that the first dimension is not a batch. Without it, 64 when the
    /// first dimension of every input and output is variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_size: Option<usize>,
    pub version_policy: VersionPolicy,
    /// The instances that run it, and on how many cores.
    pub instance_group: InstanceGroup,
    /// Rule for joining requests into one run; without it each runs by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic_batching: Option<DynamicBatching>,
    pub queue: QueueConfig,
    /// The response cache of the model.
    pub response_cache: ModelCacheConfig,
    /// Limits of all its callers together.
    pub limits: CallLimits,
    /// Policies for features without a value.
    #[serde(skip_serializing_if = "FeaturePolicies::is_empty")]
    pub features: FeaturePolicies,
    /// Properties of its inputs beyond the model file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub input: Vec<PortConfig>,
    /// Properties of its outputs beyond the model file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub output: Vec<PortConfig>,
    /// The kind of pipeline that turns content, such as a photograph, into tensors, and outputs into an answer.
    pub pipeline: PipelineConfig,
    /// The fields that are looked for in documents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub field: Vec<DocumentFieldDeclaration>,
    /// Inputs with known answers, checked at each load before the model is ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub golden: Vec<GoldenConfig>,
}

/// `kind = "model" | "chain"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// A version is one model.
    #[default]
    Model,
    /// A version is several models, which its pipeline runs one after the other.
    Chain,
}

impl ModelKind {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
    fn is_model(&self) -> bool {
        *self == Self::Model
    }
}

/// `runtime = "auto" | "onnxruntime" | "openvino"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuntimeChoice {
    /// The runtime that was measured to be the fastest on this machine, among those that accept the model.
    #[default]
    Auto,
    /// Only ONNX Runtime.
    OnnxRuntime,
    /// Only OpenVINO.
    OpenVino,
}

impl RuntimeChoice {
    /// The runtimes to try for files of `format`, in this order. A pinned runtime is tried even when it cannot read
    /// the format, so that its refusal is the model's reason.
    pub fn candidates(self, format: ModelFormat) -> Vec<Runtime> {
        match self {
            Self::Auto => Runtime::ALL.into_iter().filter(|&runtime| format.is_read_by(runtime)).collect(),
            Self::OnnxRuntime => vec![Runtime::OnnxRuntime],
            Self::OpenVino => vec![Runtime::OpenVino],
        }
    }
}

/// `version_policy = { latest = 1 } | "all" | { specific = [1, 3] }`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VersionPolicy {
    /// The highest `n` versions.
    Latest(usize),
    All,
    Specific(Vec<ModelVersion>),
}

impl Default for VersionPolicy {
    fn default() -> Self {
        Self::Latest(1)
    }
}

impl VersionPolicy {
    /// The versions to serve among those on disk, ascending. A specific version that is not on disk cannot be served,
    /// and is in the list so that it is reported.
    pub fn select(&self, on_disk: &[ModelVersion]) -> Vec<ModelVersion> {
        let mut versions = match self {
            Self::Specific(versions) => versions.clone(),
            Self::All | Self::Latest(_) => on_disk.to_vec(),
        };
        versions.sort_unstable();
        versions.dedup();
        if let Self::Latest(count) = self {
            versions.drain(..versions.len().saturating_sub(*count));
        }
        versions
    }
}

/// The instances of a model: copies that run in parallel.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InstanceGroup {
    /// The exact number: sets both `min` and `max`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
    /// The fewest while the model is in use; 1 without it. With 0 it is loaded and checked, unloaded, and loaded again by
    /// the next call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<usize>,
    /// The most; without it, as many as fit on the cores. More are loaded while calls wait and a core is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<usize>,
    /// Cores of one run. Without it, the number measured on this machine, else 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// The cores that may run it, by the system's numbers; all that models may use without it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<usize>,
    /// Milliseconds that calls may wait for an instance while a core is free, before another one is loaded; 10 without
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_queue_ms: Option<u64>,
    /// Seconds without a call after which the model is unloaded, until the next call loads it again; the daemon's
    /// `runtimes.keep_alive_s` without it, 0 for never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_alive_s: Option<u64>,
}

/// Joins requests of several callers into one run of the model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DynamicBatching {
    /// Microseconds that the first request may wait for others; 0 takes the requests that already wait.
    pub max_queue_delay_us: u64,
    /// The sizes that runs should have; the powers of two up to `max_batch_size` when empty. The model is warmed up
    /// with each.
    pub preferred_batch_sizes: Vec<usize>,
}

/// The queue of a model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueConfig {
    /// Requests that may wait; `serving.max_queue_size` of the daemon without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_size: Option<usize>,
    /// Bytes of inputs that may wait; 256 MiB without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<usize>,
    /// Milliseconds after which a caller gets 504; `serving.default_timeout_ms` of the daemon without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_timeout_ms: Option<u64>,
}

impl ModelConfig {
    /// Reads the text of a `model.toml`, or reports its mistakes.
    pub fn parse(source: &str, text: &str) -> Result<Self, Vec<ConfigMistake>> {
        let mut checked = toml_check::check::<Self>(source, text);
        checked.check_value(source, Self::mistakes);
        checked.into_result()
    }

    /// Mistakes that types cannot express.
    fn mistakes(&self) -> Vec<ValueProblem> {
        let mut mistakes = Vec::new();
        let mut check = |holds: bool, key: &str, message: &str| {
            if !holds {
                mistakes.push(ValueProblem::new(key, message));
            }
        };

        let group = &self.instance_group;
        for (key, value, range, message) in [
            ("instance_group.count", group.count, 1..=64, "expected 1 to 64"),
            ("instance_group.min", group.min, 0..=64, "expected 0 to 64"),
            ("instance_group.max", group.max, 1..=64, "expected 1 to 64"),
            ("instance_group.threads", group.threads, 1..=1024, "expected 1 to 1024"),
        ] {
            check(value.is_none_or(|value| range.contains(&value)), key, message);
        }
        check(
            group.count.is_none() || (group.min.is_none() && group.max.is_none()),
            "instance_group.count",
            "count sets both min and max: give count, or min and max",
        );
        check(
            group.min.zip(group.max).is_none_or(|(min, max)| min <= max),
            "instance_group.min",
            "expected at most max",
        );

        let within_a_year = group.keep_alive_s.is_none_or(|seconds| seconds <= 31_536_000);
        check(within_a_year, "instance_group.keep_alive_s", "expected at most 31536000 (a year)");
        let within_an_hour = group.target_queue_ms.is_none_or(|ms| ms <= 3_600_000);
        check(within_an_hour, "instance_group.target_queue_ms", "expected at most 3600000 (an hour)");

        if let Some(batching) = &self.dynamic_batching {
            let most = self.max_batch_size.unwrap_or(DEFAULT_MAX_BATCH_SIZE);
            check(most > 0, "dynamic_batching", "max_batch_size is 0, so requests cannot be batched");
            check(
                batching.preferred_batch_sizes.iter().all(|size| (1..=most.max(1)).contains(size)),
                "dynamic_batching.preferred_batch_sizes",
                "expected sizes from 1 to max_batch_size",
            );
            check(
                batching.max_queue_delay_us <= 60_000_000,
                "dynamic_batching.max_queue_delay_us",
                "expected at most 60000000 (a minute)",
            );
        }

        check(self.queue.max_size != Some(0), "queue.max_size", "expected at least 1");
        check(self.queue.max_bytes != Some(0), "queue.max_bytes", "expected at least 1");
        check(self.queue.default_timeout_ms != Some(0), "queue.default_timeout_ms", "expected at least 1");

        check(self.version_policy != VersionPolicy::Latest(0), "version_policy.latest", "expected at least 1");
        check(
            self.version_policy != VersionPolicy::Specific(vec![]),
            "version_policy.specific",
            "expected at least one version",
        );

        let inputs = self.input.iter().enumerate().map(|(index, port)| (format!("input[{index}]"), true, port));
        let outputs = self.output.iter().enumerate().map(|(index, port)| (format!("output[{index}]"), false, port));
        for (place, is_input, port) in inputs.chain(outputs) {
            let is_shape = port.shape.iter().flatten().all(|&dim| dim >= -1);
            check(is_shape, &format!("{place}.shape"), "expected dimensions of -1 (variable) or more");
            let labels = format!("{place}.labels");
            check(port.labels.as_deref().is_none_or(is_beside), &labels, "expected a file next to model.toml");
            check(!is_input || port.labels.is_none(), &labels, "only an output has labels");
            check(
                is_input || port.features.is_empty(),
                &format!("{place}.features"),
                "only an input is made of features",
            );
            let is_valid = port.quantization.is_none_or(Quantization::is_valid);
            check(is_valid, &format!("{place}.quantization.scale"), "expected a number above 0");
        }

        let is_of_use = self.features.is_empty() || self.has_features();
        check(is_of_use, "features", "no input has features: name them in [[input]]");
        let has_pipeline = self.pipeline.section().is_some();
        for (index, golden) in self.golden.iter().enumerate() {
            let place = format!("golden[{index}]");
            let found = golden.mistakes(has_pipeline).into_iter();
            mistakes.extend(
                found.map(|mistake| ValueProblem { key: mistake.key.replacen("golden", &place, 1), ..mistake }),
            );
        }

        mistakes.extend(self.chain_mistakes());
        mistakes.extend(self.response_cache.mistakes());
        mistakes.extend(self.pipeline.mistakes());
        mistakes
    }

    /// The mistakes in the settings of a chain and its fields.
    fn chain_mistakes(&self) -> Vec<ValueProblem> {
        let mut mistakes = Vec::new();
        let mut check = |holds: bool, key: &str, message: &str| {
            if !holds {
                mistakes.push(ValueProblem::new(key, message));
            }
        };
        let chain = self.pipeline.section().map(PipelineSection::kind).filter(|kind| kind.is_chain());
        let needed =
            format!("a chain needs a pipeline that runs several models: {}", sections_of(PipelineKind::is_chain));
        check(self.kind != ModelKind::Chain || chain.is_some(), "kind", &needed);
        if let Some(chain) = chain {
            let place = format!("pipeline.{}", chain.name);
            let is_chain = self.kind == ModelKind::Chain;
            check(is_chain, &place, "it runs several models: set kind = \"chain\" at the top");
        }
        let reads = self.pipeline.takes(PipelineInput::Document);
        check(self.field.is_empty() || reads, "field", "only a model that reads documents finds fields");
        let names: Vec<_> = self.field.iter().map(|field| &field.name).collect();
        for (index, field) in self.field.iter().enumerate() {
            let place = format!("field[{index}].name");
            check(!field.name.is_empty(), &place, "expected a name");
            let before = names.get(..index).unwrap_or_default();
            check(!before.contains(&&field.name), &place, "another field has this name");
        }
        mistakes
    }

    /// The models of the chain; empty for one model.
    pub fn chain_models(&self) -> &'static [ChainModel] {
        self.pipeline.section().map_or(&[], |section| section.kind().models)
    }

    /// The inputs that are made of features.
    pub fn feature_inputs(&self) -> impl Iterator<Item = &PortConfig> {
        self.input.iter().filter(|port| !port.features.is_empty())
    }

    /// True when any input is made of features.
    pub fn has_features(&self) -> bool {
        self.feature_inputs().next().is_some()
    }

    /// Returns the model's signature with the dimensions that this config fixes, or the parts of the config that
    /// contradict the model.
    pub fn complete(&self, model: &ModelSignature) -> Result<ModelSignature, Vec<String>> {
        let mut signature = model.clone();
        let mut mistakes = Vec::new();
        for (kind, configs, ports) in
            [("input", &self.input, &mut signature.inputs), ("output", &self.output, &mut signature.outputs)]
        {
            for config in configs {
                let names = ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>().join(", ");
                match ports.iter_mut().find(|port| port.name == config.name) {
                    Some(port) => {
                        mistakes.extend(config.narrow(kind, port));
                        mistakes.extend(self.impossible_policy(port, config));
                    }
                    None => mistakes.push(format!("{kind} {:?} is not in the model, which has {names}", config.name)),
                }
            }
        }
        if mistakes.is_empty() { Ok(signature) } else { Err(mistakes) }
    }

    /// Finds a policy with a value that the input's datatype cannot have.
    fn impossible_policy(&self, port: &ModelPort, config: &PortConfig) -> Option<String> {
        config.features.iter().find_map(|feature| {
            let reason = feature.all_policies(&self.features).find_map(|(status, policy)| {
                let reason = match policy {
                    FeaturePolicy::Refuse => None,
                    FeaturePolicy::Nan if has_nan(port.datatype) => None,
                    FeaturePolicy::Nan => Some(format!("{} has no NaN: name a default", port.datatype)),
                    FeaturePolicy::Default(value) => {
                        let refused = FeatureElements::new(port.datatype).push(&value.to_value()).err();
                        refused.map(|refused| format!("its default: {refused}"))
                    }
                };
                reason.map(|reason| format!("for {}, {reason}", status.as_str()))
            })?;
            Some(format!("input {:?}, feature {:?}: {reason}", port.name, feature.feature.as_str()))
        })
    }

    /// The most batch elements of one request; `None` when the first dimension is not a batch.
    pub fn batch_limit(&self, signature: &ModelSignature) -> Result<Option<usize>, String> {
        let mut ports = signature.inputs.iter().chain(&signature.outputs);
        let batchable = ports.all(|port| port.shape.first() == Some(&-1)) && !signature.inputs.is_empty();
        match self.max_batch_size {
            None => Ok(batchable.then_some(DEFAULT_MAX_BATCH_SIZE)),
            Some(0) => Ok(None),
            Some(limit) if batchable => Ok(Some(limit)),
            Some(limit) => {
                Err(format!("max_batch_size is {limit}, but not every input and output has a variable first dimension"))
            }
        }
    }
}

/// Reads a text for the fuzzers; true when it is a model config. An accepted one is the same after it was written and
/// read again.
///
/// # Panics
///
/// When that does not hold, which is a bug.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let Ok(config) = ModelConfig::parse("model.toml", text) else { return false };
    let written = toml::to_string(&config).unwrap_or_default();
    assert_eq!(ModelConfig::parse("model.toml", &written).as_ref(), Ok(&config), "{written}");
    true
}

#[cfg(test)]
mod every_mistake;
#[cfg(test)]
mod tests {
    use super::*;
    use ledge_base::tensor::DataType;

    fn version(number: u64) -> ModelVersion {
        number.try_into().unwrap()
    }

    #[test]
    fn a_policy_selects_the_versions_to_serve() {
        let disk = [1, 2, 10].map(version);
        let select = |text: &str| {
            let config = ModelConfig::parse("t", text).unwrap();
            config.version_policy.select(&disk).iter().map(|version| version.get()).collect::<Vec<_>>()
        };
        assert_eq!(select(""), [10]);
        assert_eq!(select("version_policy = { latest = 2 }"), [2, 10]);
        assert_eq!(select("version_policy = { latest = 9 }"), [1, 2, 10]);
        assert_eq!(select("version_policy = \"all\""), [1, 2, 10]);
        assert_eq!(select("version_policy = { specific = [7, 1] }"), [1, 7]);
    }

    #[test]
    fn every_mistake_is_reported_at_once() {
        let text = "runtime = \"tensorrt\"\nmax_batch = 3\n[instance_group]\ncount = \"two\"\n";
        let mistakes = ModelConfig::parse("model.toml", text).unwrap_err();
        let lines: Vec<_> = mistakes.iter().filter_map(|mistake| mistake.line).collect();
        assert_eq!(lines, [1, 2, 4], "{mistakes:?}");
        let text =
            "[instance_group]\ncount = 0\n[[golden]]\nfile = \"../secret\"\n[[input]]\nname = \"x\"\nshape = [-2]\n";
        assert_eq!(ModelConfig::parse("model.toml", text).unwrap_err().len(), 3);
    }

    #[test]
    fn a_config_may_fix_variable_dimensions_and_contradict_nothing() {
        let port =
            |name: &str, shape: &[i64]| ModelPort { name: name.into(), datatype: DataType::Fp32, shape: shape.into() };
        let model = ModelSignature { inputs: vec![port("x", &[-1, -1])], outputs: vec![port("y", &[-1, 3])] };
        let config = ModelConfig::parse("t", "[[input]]\nname = \"x\"\nshape = [-1, 16]").unwrap();
        assert_eq!(config.complete(&model).unwrap().inputs[0].shape, [-1, 16]);
        let text = "[[input]]\nname = \"z\"\n[[output]]\nname = \"y\"\nshape = [-1, 4]\n";
        assert_eq!(ModelConfig::parse("t", text).unwrap().complete(&model).unwrap_err().len(), 2);
    }

    #[test]
    fn an_input_may_be_made_of_features_as_far_as_its_datatype_allows() {
        let text = "[features]\nnot_found = \"nan\"\nnull_value = { default = [1, 2.5] }\n[[input]]\nname = \"x\"\n\
                    features = [\"a:b\", { feature = \"a:c\", not_found = \"refuse\", null_value = { default = 3 } }]\n";
        let config = ModelConfig::parse("t", text).unwrap();
        assert!(fuzz(text.as_bytes()));
        let complete = |config: &ModelConfig, datatype| {
            let port = ModelPort { name: "x".into(), datatype, shape: vec![-1, 2] };
            config.complete(&ModelSignature { inputs: vec![port], outputs: vec![] })
        };
        assert!(complete(&config, DataType::Fp32).is_ok());
        let mistakes = complete(&config, DataType::Int64).unwrap_err();
        assert_eq!(mistakes.len(), 1);
        assert!(mistakes[0].contains("\"a:b\"") && mistakes[0].contains("NULL_VALUE"), "{mistakes:?}");
        for (text, line) in [
            ("[[input]]\nname = \"x\"\nfeatures = [\"ab\"]", 3),
            ("[[input]]\nname = \"x\"\nfeatures = [{ feature = \"a:b:c\" }]", 3),
            ("[[input]]\nname = \"x\"\nfeatures = [{ feature = \"a:b\", not_there = \"nan\" }]", 3),
            ("[features]\nnot_found = { default = nan }\n[[input]]\nname = \"x\"\nfeatures = [\"a:b\"]", 2),
        ] {
            let mistakes = ModelConfig::parse("t", text).unwrap_err();
            assert_eq!(mistakes.iter().map(|mistake| mistake.line).collect::<Vec<_>>(), [Some(line)], "{mistakes:?}");
        }
        for text in ["[features]\nnot_found = \"nan\"", "[[output]]\nname = \"y\"\nfeatures = [\"a:b\"]"] {
            assert_eq!(ModelConfig::parse("t", text).unwrap_err().len(), 1, "{text}");
        }
    }

    #[test]
    fn a_batch_needs_a_variable_first_dimension_everywhere() {
        let port = |shape: &[i64]| ModelPort { name: "p".into(), datatype: DataType::Fp32, shape: shape.into() };
        let batched = ModelSignature { inputs: vec![port(&[-1, 4])], outputs: vec![port(&[-1])] };
        let fixed = ModelSignature { inputs: vec![port(&[3, 4])], outputs: vec![port(&[])] };
        let config = |text| ModelConfig::parse("t", text).unwrap();
        assert_eq!(config("").batch_limit(&batched), Ok(Some(64)));
        assert_eq!(config("").batch_limit(&fixed), Ok(None));
        assert_eq!(config("max_batch_size = 8").batch_limit(&batched), Ok(Some(8)));
        assert_eq!(config("max_batch_size = 0").batch_limit(&batched), Ok(None));
        assert!(config("max_batch_size = 8").batch_limit(&fixed).is_err());
    }
}
