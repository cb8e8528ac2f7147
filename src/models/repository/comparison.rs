//! The comparison of the answers of two models on the same inputs: how often a version is expected to agree with the
//! one before.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ledge_base::names::ModelName;
use ledge_base::tensor::Tensor;

use super::loaded_model::LoadedModel;
use super::loading::{Predecessor, VersionLoadError, VersionToLoad};
use super::pace::run_sample;
use super::recent_inputs::SampleInput;
use super::{ModelFolderError, Repository, agreement, folder, golden};

/// The proposed tolerance, in medians of the differences: 99 of 100 normally distributed ones are within it, and it
/// does not grow with a fifth of wrong answers among them.
const MEDIANS: f64 = 4.0;

/// The least tolerance that is proposed: that of a release that names none.
const TOLERANCE_MIN: f64 = 0.01;

/// The end of the name of a file with an input on each line.
const LINES: &str = "jsonl";

/// The answers of two models on the same inputs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AnswerComparison {
    pub agreed: u64,
    pub compared: u64,
    /// The tolerance within which they agreed, where they are compared by numbers.
    pub tolerance: Option<f64>,
    /// Inputs that the old model did not answer, and the first reason.
    pub unanswered: u64,
    pub unanswered_reason: Option<String>,
    /// The first inputs on which they disagree.
    pub disagreements: Vec<String>,
}

/// Settings of a comparison.
#[derive(Debug, Clone, Copy, Default)]
pub struct ComparisonOptions<'a> {
    /// A folder with inputs besides the golden ones.
    pub inputs: Option<&'a Path>,
    /// An output of scores, which agree when the same class comes first.
    pub scores: Option<&'a str>,
    /// Numbers agree within it; `None` is within four medians of their differences.
    pub tolerance: Option<f64>,
}

/// Most disagreements that are named.
const NAMED_MAX: usize = 10;

/// Reasons why two models are not compared.
#[derive(Debug, thiserror::Error)]
pub enum ComparisonError {
    #[error("{model}: {error}")]
    Load { model: ModelName, error: VersionLoadError },
    #[error("{model}: it has no version in this repository")]
    NoVersion { model: ModelName },
    #[error("{}: {error}", path.display())]
    Input { path: PathBuf, error: io::Error },
    #[error("{model} does not answer {input}, which {other} answers: {reason}")]
    Failed { model: ModelName, other: ModelName, input: String, reason: String },
}

impl From<(&ModelName, ModelFolderError)> for ComparisonError {
    fn from((model, error): (&ModelName, ModelFolderError)) -> Self {
        Self::Load { model: model.clone(), error: error.into() }
    }
}

impl Repository {
    /// Compares the highest versions of two models on the golden inputs of both and on those of `options`. The new one
    /// runs in the runtime of the old one, unless its model config names another.
    pub async fn compare(
        &self,
        old: &ModelName,
        new: &ModelName,
        options: ComparisonOptions<'_>,
    ) -> Result<AnswerComparison, ComparisonError> {
        let loaded_old = self.load_highest(old, None).await?;
        let before = loaded_old.as_predecessor();
        let loaded_new = match self.load_highest(new, Some(&before)).await {
            Ok(model) => model,
            Err(error) => {
                self.end(loaded_old).await;
                return Err(error);
            }
        };
        let compared = compare_on(&loaded_old, &loaded_new, options).await;
        self.end(loaded_new).await;
        self.end(loaded_old).await;
        compared
    }

    async fn load_highest(
        &self,
        name: &ModelName,
        predecessor: Option<&Predecessor>,
    ) -> Result<Arc<LoadedModel>, ComparisonError> {
        let path = self.shared.sources.folder(name);
        let found = folder::model_config(&path).and_then(|config| Ok((config, folder::versions(&path)?.0)));
        let ((config, config_text), versions) = found.map_err(|error| (name, error))?;
        let version = versions.last().copied().ok_or_else(|| ComparisonError::NoVersion { model: name.clone() })?;
        let files = path.join(version.to_string());
        let source = VersionToLoad {
            predecessor,
            ..VersionToLoad::new(name, version, (&path, &files), (&config, &config_text))
        };
        self.load_unprofiled(source)
            .await
            .map(Arc::new)
            .map_err(|error| ComparisonError::Load { model: name.clone(), error })
    }
}

async fn compare_on(
    old: &LoadedModel,
    new: &LoadedModel,
    ComparisonOptions { inputs, scores, tolerance }: ComparisonOptions<'_>,
) -> Result<AnswerComparison, ComparisonError> {
    let mut compared = AnswerComparison::default();
    let mut answers = Vec::new();
    for (name, content) in contents(old, new, inputs)? {
        let sample = golden::sample_of(old, content).map_err(|error| error.to_string());
        let answer = match &sample {
            Ok(sample) => outputs_of(old, sample).await,
            Err(reason) => Err(reason.clone()),
        };
        match (sample, answer) {
            (Ok(sample), Ok(one)) => {
                let failed = |reason| ComparisonError::Failed {
                    model: new.name.clone(),
                    other: old.name.clone(),
                    input: name.clone(),
                    reason,
                };
                let in_order = matches!(sample, SampleInput::Content(_));
                answers.push((outputs_of(new, &sample).await.map_err(failed)?, one, in_order, name));
            }
            (_, Err(reason)) | (Err(reason), _) => {
                compared.unanswered += 1;
                compared.unanswered_reason.get_or_insert(format!("{name}: {reason}"));
            }
        }
    }

    let differences = answers.iter().map(|(other, one, in_order, _)| {
        agreement::difference([(old, one.as_slice()), (new, other.as_slice())], scores, *in_order)
    });
    let mut differences: Vec<f64> = differences.flatten().filter(|by| by.is_finite()).collect();
    let by_numbers = !differences.is_empty();
    differences.sort_unstable_by(f64::total_cmp);
    let within = tolerance.unwrap_or_else(|| (MEDIANS * median(&differences)).max(TOLERANCE_MIN));
    compared.tolerance = by_numbers.then_some(within);
    for (other, one, in_order, name) in &answers {
        compared.compared += 1;
        if agreement::answers_agree([(old, one.as_slice()), (new, other.as_slice())], scores, *in_order, within) {
            compared.agreed += 1;
        } else if compared.disagreements.len() < NAMED_MAX {
            compared.disagreements.push(name.clone());
        }
    }
    Ok(compared)
}

async fn outputs_of(model: &LoadedModel, sample: &SampleInput) -> Result<Vec<(String, Tensor)>, String> {
    let outputs = run_sample(model, sample).await.map_err(|error| error.to_string())?.run.outputs;
    let names = match (sample, &model.pipeline) {
        (SampleInput::Content(_), Some(pipeline)) => model.result_names(pipeline.as_ref()),
        _ => model.signature.outputs.iter().map(|port| port.name.clone()).collect(),
    };
    Ok(names.into_iter().zip(outputs).collect())
}

/// The golden inputs of both models, and the given ones, by their names.
fn contents(
    old: &LoadedModel,
    new: &LoadedModel,
    inputs: Option<&Path>,
) -> Result<Vec<(String, Vec<u8>)>, ComparisonError> {
    let mut paths = Vec::new();
    for model in [old, new] {
        let folder = model.golden_folder().unwrap_or(Path::new(""));
        paths.extend(model.config.golden.iter().map(|golden| folder.join(&golden.file)));
    }
    if let Some(folder) = inputs {
        let failed = |error| ComparisonError::Input { path: folder.to_owned(), error };
        let entries: io::Result<Vec<_>> = fs::read_dir(folder).map_err(failed)?.collect();
        let mut given: Vec<PathBuf> = entries.map_err(failed)?.into_iter().map(|entry| entry.path()).collect();
        given.retain(|path| path.is_file());
        given.sort();
        paths.extend(given);
    }

    let mut contents = Vec::new();
    for path in paths {
        let content = fs::read(&path).map_err(|error| ComparisonError::Input { path: path.clone(), error })?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_some_and(|extension| extension == LINES) {
            let lines =
                content.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.trim_ascii().is_empty());
            contents.extend(lines.map(|(number, line)| (format!("{name}:{}", number + 1), line.to_vec())));
        } else {
            contents.push((name, content));
        }
    }
    Ok(contents)
}

/// The middle one of sorted numbers; 0 of none.
fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}
