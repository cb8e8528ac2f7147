//! Warm-up and golden inputs: before a version is ready it has run, and given the expected answers.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ledge_base::contained;
use ledge_base::memory_budget::MemoryAccount;
use ledge_base::principal::Principal;
use ledge_base::serde_messages::in_json;
use ledge_base::tensor::{DataType, Tensor};
use ledge_engine::backend::ModelPort;
use ledge_engine::pipeline::content::CallContent;
use ledge_engine::pipeline::image::DecodeLimits;
use ledge_engine::pipeline::kind::{GoldenExpectation, Pipeline};
use ledge_engine::warm_up::WarmUp;

pub use super::golden_error::GoldenError;
use super::loaded_model::LoadedModel;
use super::model_config::GoldenConfig;
use super::recent_inputs::SampleInput;
use crate::scheduling::terms::{Priority, RunTerms};

/// Shortest timeout of a run at load: a model that needs longer than this and than its own timeout is refused.
const RUN_TIMEOUT_MIN: Duration = Duration::from_mins(1);
/// Longest timeout of a run at load, however long the model's own timeout is.
const RUN_TIMEOUT_MAX: Duration = Duration::from_hours(1);

/// Terms of the daemon's own runs, which wait behind no background work.
pub(super) fn terms(model: &LoadedModel) -> RunTerms {
    let deadline = Instant::now() + model.timeout.clamp(RUN_TIMEOUT_MIN, RUN_TIMEOUT_MAX);
    RunTerms { deadline, priority: Priority::Interactive, principal: Principal::Local }
}

/// Number of golden inputs that a model answers right.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GoldenScore {
    pub right: usize,
    pub total: usize,
    /// Inputs that could not be read, or got no answer.
    pub unchecked: usize,
    /// The first fault; a wrong answer replaces an unchecked one.
    pub fault: Option<GoldenError>,
}

impl GoldenScore {
    fn count(&mut self, checked: Result<(), GoldenError>) {
        self.total += 1;
        let Err(error) = checked else {
            self.right += 1;
            return;
        };
        let is_unchecked = matches!(error, GoldenError::Unchecked(_));
        self.unchecked += usize::from(is_unchecked);
        if self.fault.is_none() || (!is_unchecked && matches!(self.fault, Some(GoldenError::Unchecked(_)))) {
            self.fault = Some(error);
        }
    }

    /// True when at least this share is right; always true without inputs.
    pub fn reaches(&self, share: f64) -> bool {
        reaches(self.right, self.total, share)
    }

    /// Checks that enough golden inputs are answered right: the share `least` of them, or all.
    fn verdict(&self, least: Option<f64>) -> Result<(), GoldenError> {
        let Some(fault) = &self.fault else { return Ok(()) };
        let Some(least) = least else { return Err(fault.clone()) };
        if self.reaches(least) {
            return Ok(());
        }
        let Self { right, total, unchecked, .. } = *self;
        let reason =
            format!("{right} of {total} golden inputs are answered right, expected a share of {least}; {fault}");
        // The unchecked ones could have made it enough.
        let may_pass = reaches(right + unchecked, total, least);
        Err(if may_pass { GoldenError::Unchecked(reason) } else { GoldenError::Wrong(reason) })
    }
}

fn reaches(right: usize, total: usize, share: f64) -> bool {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let (right, total) = (right as f64, total as f64);
    right >= share * total
}

/// Runs every golden input of `model`, with files in `folder`, and compares the answers.
pub async fn score(model: &LoadedModel, folder: &Path) -> GoldenScore {
    let mut score = GoldenScore::default();
    for golden in &model.config.golden {
        let checked = check_input(model, golden, folder).await;
        score.count(checked.map_err(|error| error.of(&format!("golden input {}", golden.file))));
    }
    score
}

/// Checks that `model` answers enough golden inputs right: the share `least` of them, or all.
pub async fn check(model: &LoadedModel, folder: &Path, least: Option<f64>) -> Result<(), GoldenError> {
    let score = score(model, folder).await;
    score.verdict(least)?;
    if let Some(reason) = &score.fault {
        let GoldenScore { right, total, .. } = score;
        tracing::warn!(model = %model.name, version = %model.version, right, total, %reason,
            "some golden inputs are answered wrong, but enough are right");
    }
    Ok(())
}

/// True when `model` answers the first of its golden inputs right: enough for files that passed all of them on this
/// box.
pub async fn is_first_right(model: &LoadedModel, folder: &Path) -> bool {
    let Some(first) = model.config.golden.first() else { return false };
    check_input(model, first, folder).await.is_ok()
}

async fn check_input(model: &LoadedModel, golden: &GoldenConfig, folder: &Path) -> Result<(), GoldenError> {
    let content = read(folder, &golden.file)?;
    match &model.pipeline {
        Some(pipeline) if !content.starts_with(b"{") => {
            let expected = golden.outputs.as_ref().map(|file| read_outputs(folder, file)).transpose()?;
            through_pipeline(model, pipeline, golden, content, &expected.unwrap_or_default()).await
        }
        _ => request(model, golden, &content).await,
    }
}

fn read(folder: &Path, file: &str) -> Result<Vec<u8>, GoldenError> {
    let unread = |error| GoldenError::Unchecked(format!("{} cannot be read: {error}", folder.join(file).display()));
    contained::read(folder, Path::new(file), contained::DATA_MAX).map_err(unread)
}

/// The expected outputs of a golden input that goes through the model's pipeline.
fn read_outputs(folder: &Path, file: &str) -> Result<Vec<GoldenTensor>, GoldenError> {
    let parsed: Result<GoldenOutputs, _> = serde_json::from_slice(&read(folder, file)?);
    let wrong = |error| GoldenError::Wrong(format!("{}: {error}", folder.join(file).display()));
    let expected = parsed.map_err(wrong)?;
    Ok(expected.outputs)
}

/// Does the runs on zeros of `warm_up`, one at a time. A model that refuses zeros, for example because an index must
/// not be 0, is not at fault.
pub async fn warm_up(model: &LoadedModel, warm_up: &WarmUp) {
    let outputs: Vec<usize> = (0..model.signature.outputs.len()).collect();
    for (rows, inputs) in warm_up.runs() {
        if let Err(error) = model.run(inputs, outputs.clone(), terms(model)).await {
            tracing::info!(model = %model.name, version = %model.version, rows, %error,
                "warm-up with zeros failed; the model is served anyway");
        }
    }
}

async fn through_pipeline(
    model: &LoadedModel,
    pipeline: &Arc<dyn Pipeline>,
    golden: &GoldenConfig,
    content: Vec<u8>,
    expected: &[GoldenTensor],
) -> Result<(), GoldenError> {
    // Outputs of the model come first, then the results of the pipeline.
    let names = pipeline.results().unwrap_or_default();
    let (of_pipeline, of_model): (Vec<_>, Vec<_>) =
        expected.iter().partition(|expected| names.contains(&expected.name.as_str()));
    let outputs = positions(model, of_model.iter().copied()).map_err(GoldenError::Wrong)?;
    let content = CallContent::of_file(pipeline.kind().input, content.into());
    let content = content.map_err(|error| GoldenError::Wrong(error.to_string()))?;
    let (limits, account) = (DecodeLimits::default(), MemoryAccount::unlimited());
    let answer = model.run_pipeline(pipeline, content, limits, account, outputs, terms(model)).await?;
    compare(of_model.iter().copied().zip(&answer.run.outputs), golden)?;

    let own: Vec<_> = answer.run.outputs.iter().skip(of_model.len()).collect();
    let result = |expected: &GoldenTensor| names.iter().position(|name| *name == expected.name);
    let results = of_pipeline.into_iter().filter_map(|expected| Some((expected, *own.get(result(expected)?)?)));
    compare(results, golden)?;
    let (label, detections) = (golden.label.as_deref(), golden.detections.as_deref());
    let expected = GoldenExpectation { label, min_score: golden.min_score, detections, words: golden.words.as_deref() };
    pipeline.judge(&own, expected).map_err(GoldenError::Wrong)
}

/// A request in the form of HTTP, together with its answer.
#[derive(serde::Deserialize)]
struct GoldenRequest {
    inputs: Vec<GoldenTensor>,
    outputs: Vec<GoldenTensor>,
}

/// Only the inputs.
#[derive(serde::Deserialize)]
struct GoldenInputs {
    inputs: Vec<GoldenTensor>,
}

/// Only the answer.
#[derive(serde::Deserialize)]
struct GoldenOutputs {
    outputs: Vec<GoldenTensor>,
}

#[derive(serde::Deserialize)]
struct GoldenTensor {
    name: String,
    shape: Vec<usize>,
    data: GoldenData,
}

/// The elements of a tensor: numbers, the strings of a BYTES tensor, or those of a BOOL tensor.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum GoldenData {
    Numbers(Vec<f64>),
    Strings(Vec<String>),
    Booleans(Vec<bool>),
}

/// Booleans are compared as 0 and 1.
fn numbers_of(booleans: &[bool]) -> Vec<f64> {
    booleans.iter().copied().map(f64::from).collect()
}

async fn request(model: &LoadedModel, golden: &GoldenConfig, content: &[u8]) -> Result<(), GoldenError> {
    let request: GoldenRequest = parse(content)?;
    let outputs = positions(model, request.outputs.iter()).map_err(GoldenError::Wrong)?;
    let answer = model.run(tensors(model, &request.inputs)?, outputs, terms(model)).await?;
    compare(request.outputs.iter().zip(&answer.run.outputs), golden)
}

/// The input of a golden input of `model`, without its expected answer.
pub(super) fn sample_input(
    model: &LoadedModel,
    golden: &GoldenConfig,
    folder: &Path,
) -> Result<SampleInput, GoldenError> {
    sample_of(model, read(folder, &golden.file)?)
}

/// An input for `model` in the form of a golden input.
pub(super) fn sample_of(model: &LoadedModel, content: Vec<u8>) -> Result<SampleInput, GoldenError> {
    match &model.pipeline {
        Some(pipeline) if !content.starts_with(b"{") => {
            let content = CallContent::of_file(pipeline.kind().input, content.into());
            content.map(SampleInput::Content).map_err(|error| GoldenError::Wrong(error.to_string()))
        }
        _ => tensors(model, &parse::<GoldenInputs>(&content)?.inputs).map(SampleInput::Tensors),
    }
}

fn parse<T: serde::de::DeserializeOwned>(content: &[u8]) -> Result<T, GoldenError> {
    serde_json::from_slice(content).map_err(|error| GoldenError::Wrong(in_json(&error.to_string())))
}

/// The inputs of a golden request, in the order of the model's signature.
fn tensors(model: &LoadedModel, given: &[GoldenTensor]) -> Result<Vec<Tensor>, GoldenError> {
    let input = |port: &ModelPort| {
        let tensor = given.iter().find(|tensor| tensor.name == port.name);
        tensor.ok_or_else(|| format!("input {:?} is missing", port.name))?.to_tensor(port)
    };
    let inputs: Result<_, String> = model.signature.inputs.iter().map(input).collect();
    inputs.map_err(GoldenError::Wrong)
}

/// Indices of these outputs in the model's signature.
fn positions<'g>(model: &LoadedModel, outputs: impl Iterator<Item = &'g GoldenTensor>) -> Result<Vec<usize>, String> {
    let position = |expected: &GoldenTensor| {
        let position = model.signature.outputs.iter().position(|port| port.name == expected.name);
        position.ok_or_else(|| format!("output {:?} is not in the model", expected.name))
    };
    outputs.map(position).collect()
}

fn compare<'g>(
    pairs: impl Iterator<Item = (&'g GoldenTensor, &'g Tensor)>,
    golden: &GoldenConfig,
) -> Result<(), GoldenError> {
    for (expected, got) in pairs {
        let compared = expected.compare(got, golden);
        compared.map_err(|reason| GoldenError::Wrong(format!("output {:?} {reason}", expected.name)))?;
    }
    Ok(())
}

impl GoldenTensor {
    fn to_tensor(&self, port: &ModelPort) -> Result<Tensor, String> {
        let tensor = match (&self.data, port.datatype) {
            (GoldenData::Numbers(numbers), datatype) => {
                ledge_base::tensor::from_f64(datatype, self.shape.clone(), numbers)
            }
            (GoldenData::Booleans(booleans), DataType::Bool) => {
                ledge_base::tensor::from_f64(DataType::Bool, self.shape.clone(), &numbers_of(booleans))
            }
            (GoldenData::Strings(strings), DataType::Bytes) => Tensor::from_strings(self.shape.clone(), strings),
            (GoldenData::Strings(_), datatype) => {
                return Err(format!("input {:?} is {datatype}, and the data are strings", self.name));
            }
            (GoldenData::Booleans(_), datatype) => {
                return Err(format!("input {:?} is {datatype}, and the data are booleans", self.name));
            }
        };
        tensor.map_err(|error| format!("input {:?}: {error}", self.name))
    }

    fn compare(&self, got: &Tensor, golden: &GoldenConfig) -> Result<(), String> {
        if got.shape() != self.shape {
            return Err(format!("has shape {:?}, expected {:?}", got.shape(), self.shape));
        }
        let data = match &self.data {
            GoldenData::Strings(strings) => return compare_strings(strings, got),
            GoldenData::Numbers(numbers) => numbers,
            GoldenData::Booleans(booleans) => &numbers_of(booleans),
        };
        let values =
            ledge_base::tensor::to_f64(got).ok_or_else(|| format!("is {}, expected numbers", got.datatype()))?;
        if values.len() != data.len() {
            return Err(format!("has {} elements, the expected data {}", values.len(), data.len()));
        }
        if values.iter().any(|value| value.is_nan()) {
            return Err("holds values that are not numbers".to_owned());
        }

        // Without either setting, a tolerance above the rounding of any runtime.
        let tolerance = golden.tolerance.or(golden.max_relative_error.is_none().then_some(1e-3));
        let difference = |(a, b): (&f64, &f64)| (a - b).abs();
        let worst = values.iter().zip(data).map(difference).fold(0.0, f64::max);
        if let Some(tolerance) = tolerance.filter(|tolerance| worst > *tolerance) {
            return Err(format!("differs by {worst:.6}, more than {tolerance}"));
        }

        let relative = relative_error(&values, data);
        match golden.max_relative_error {
            // An infinite difference may result in NaN.
            Some(most) if relative.is_nan() || relative > most => {
                Err(format!("has a relative error of {relative:.3}, more than {most}"))
            }
            _ => Ok(()),
        }
    }
}

/// Strings have no distance: each is the expected one.
fn compare_strings(expected: &[String], got: &Tensor) -> Result<(), String> {
    let strings = got.strings().ok_or_else(|| format!("is {}, expected strings", got.datatype()))?;
    let strings: Vec<_> = strings.collect();
    if strings.len() != expected.len() {
        return Err(format!("has {} elements, the expected data {}", strings.len(), expected.len()));
    }
    let mut pairs = strings.iter().zip(expected).enumerate();
    match pairs.find(|(_, (got, expected))| **got != expected.as_bytes()) {
        None => Ok(()),
        Some((index, (got, expected))) => {
            Err(format!("has {:?} at position {index}, expected {expected:?}", String::from_utf8_lossy(got)))
        }
    }
}

/// The Euclidean distance of `got` from `expected`, as a share of the norm of `expected`.
fn relative_error(got: &[f64], expected: &[f64]) -> f64 {
    let norm = |squares: &mut dyn Iterator<Item = f64>| squares.sum::<f64>().sqrt();
    let distance = norm(&mut got.iter().zip(expected).map(|(a, b)| (a - b).powi(2)));
    if distance == 0.0 { 0.0 } else { distance / norm(&mut expected.iter().map(|b| b.powi(2))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(expected: &[f64], got: &[f64], keys: &str) -> Result<(), String> {
        let shape = |data: &[f64]| vec![data.len()];
        let expected =
            GoldenTensor { name: "y".into(), shape: shape(expected), data: GoldenData::Numbers(expected.into()) };
        let got = ledge_base::tensor::from_f64(DataType::Fp64, shape(got), got).unwrap();
        expected.compare(&got, &toml::from_str(&format!("file = 'f'\n{keys}")).unwrap())
    }

    #[test]
    fn an_answer_is_judged_by_its_largest_difference_or_by_its_distance() {
        let (expected, near) = ([3.0, -4.0], [3.5, -4.0]);
        assert!(compare(&expected, &expected, "").is_ok());
        assert!(compare(&expected, &near, "").unwrap_err().contains("differs by 0.500000, more than 0.001"));
        assert!(compare(&expected, &near, "tolerance = 0.5").is_ok());
        assert!(compare(&expected, &near, "max_relative_error = 0.1").is_ok());
        let reason = compare(&expected, &near, "max_relative_error = 0.09").unwrap_err();
        assert_eq!(reason, "has a relative error of 0.100, more than 0.09");
        assert!(compare(&expected, &near, "max_relative_error = 0.1\ntolerance = 0.4").is_err());
        // Zero is within every share of zero.
        assert!(compare(&[0.0], &[0.0], "max_relative_error = 0").is_ok());
        assert!(compare(&[0.0], &[1e-9], "max_relative_error = 9e9").is_err());
    }

    #[test]
    fn no_tolerance_takes_what_is_no_number_or_has_another_shape() {
        for keys in ["tolerance = 1e300", "max_relative_error = 1e300", "tolerance = inf\nmax_relative_error = inf"] {
            assert!(compare(&[1.0, 2.0], &[1.0, f64::NAN], keys).is_err(), "{keys}");
            assert!(compare(&[1.0, 2.0], &[1.0], keys).is_err(), "{keys}");
        }
        for infinite in [f64::INFINITY, f64::NEG_INFINITY] {
            assert!(compare(&[1.0], &[infinite], "max_relative_error = 1e300").is_err());
            assert!(compare(&[infinite], &[1.0], "max_relative_error = 1e300").is_err());
        }
    }

    #[test]
    fn strings_are_equal_or_wrong() {
        let expected = |names: &[&str]| GoldenTensor {
            name: "label".into(),
            shape: vec![names.len()],
            data: GoldenData::Strings(names.iter().map(ToString::to_string).collect()),
        };
        let golden = toml::from_str("file = 'f'").unwrap();
        let got = Tensor::from_strings(vec![2], ["ok", "watch"]).unwrap();
        assert_eq!(expected(&["ok", "watch"]).compare(&got, &golden), Ok(()));
        let reason = expected(&["ok", "wait"]).compare(&got, &golden).unwrap_err();
        assert_eq!(reason, "has \"watch\" at position 1, expected \"wait\"");
        let numbers = ledge_base::tensor::from_f64(DataType::Int64, vec![2], &[0.0, 1.0]).unwrap();
        assert_eq!(expected(&["0", "1"]).compare(&numbers, &golden).unwrap_err(), "is INT64, expected strings");
        let port = |datatype| ModelPort { name: "x".into(), datatype, shape: vec![-1] };
        assert_eq!(expected(&["ok", "watch"]).to_tensor(&port(DataType::Bytes)), Ok(got));
        assert!(expected(&["ok"]).to_tensor(&port(DataType::Fp32)).is_err());
    }

    fn score(checked: impl IntoIterator<Item = Result<(), GoldenError>>) -> GoldenScore {
        let mut score = GoldenScore::default();
        checked.into_iter().for_each(|checked| score.count(checked));
        score
    }

    fn wrong() -> Result<(), GoldenError> {
        Err(GoldenError::Wrong("wrong".to_owned()))
    }

    fn unchecked() -> Result<(), GoldenError> {
        Err(GoldenError::Unchecked("unreadable".to_owned()))
    }

    #[test]
    fn a_wrong_answer_goes_before_one_that_is_not_known() {
        assert_eq!(score([]).verdict(None), Ok(()));
        assert_eq!(score([Ok(()), unchecked(), wrong()]).verdict(None), wrong());
        assert_eq!(score([wrong(), unchecked()]).verdict(None), wrong());
        assert_eq!(score([Ok(()), unchecked()]).verdict(None), unchecked());
    }

    #[test]
    fn inputs_that_could_not_be_checked_do_not_make_a_model_wrong() {
        let is_wrong = |score: GoldenScore| matches!(score.verdict(Some(0.5)), Err(GoldenError::Wrong(_)));
        let is_unchecked = |score: GoldenScore| matches!(score.verdict(Some(0.5)), Err(GoldenError::Unchecked(_)));
        assert_eq!(score([Ok(()), wrong()]).verdict(Some(0.5)), Ok(()));
        assert_eq!(score([Ok(()), unchecked()]).verdict(Some(0.5)), Ok(()));
        assert!(is_wrong(score([Ok(()), wrong(), wrong()])));
        assert!(is_wrong(score([wrong(), unchecked(), wrong()])));
        assert!(is_unchecked(score([unchecked(), wrong()])));
        assert!(is_unchecked(score([unchecked(), unchecked(), wrong(), Ok(()), wrong()])));
    }
}
