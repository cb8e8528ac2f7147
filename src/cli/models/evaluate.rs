//! `ledge models evaluate`: the accuracy of a model on files of known classes. It calls the model as `ledge infer`
//! does.

use std::io::Write;
use std::path::PathBuf;
use std::slice;

use anyhow::bail;
use clap::Args;
use ledge_base::names::{ModelName, ModelVersion};
use ledge_base::principal::Principal;
use ledge_models::repository::ModelFolders;
use ledge_protocol::decode::ModelTarget;
use serde_json::{Map, Value, json};

use super::labels::{LabelSource, class};
use super::missing::{self, AlternativeSources};
use crate::cli::infer::{self, files::InputFiles};
use crate::cli::standalone::standalone;
use crate::cli::{Exit, Output};
use crate::config::Config;

/// The arguments of `ledge models evaluate`.
#[derive(Debug, Args)]
pub struct EvaluateArgs {
    /// The model: the name of its folder.
    pub model: ModelName,
    /// The folder of the files: photographs, or inference requests as .json. A subfolder for each class gives the label
    /// of its files.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// The labels of the files, instead of subfolders: lines of FILE,LABEL.
    #[arg(long, value_name = "FILE")]
    pub labels: Option<PathBuf>,
    /// The version of the model [default: the one that the server would use].
    #[arg(long = "version", value_name = "N")]
    pub model_version: Option<ModelVersion>,
    /// The model repository, instead of the configured one.
    #[arg(long, value_name = "DIR")]
    pub repository: Option<PathBuf>,
    /// Write JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Runs the verb. It fails when a file was not answered.
pub async fn run(config: &Config, args: &EvaluateArgs, out: &mut Output) -> anyhow::Result<Exit> {
    missing::require(&ModelFolders::of(&config.repository), &args.model, AlternativeSources::Root)?;
    let labels = LabelSource::read(args.labels.as_deref())?;
    let mut inputs = InputFiles::find(slice::from_ref(&args.folder), None)?.files;
    let found = inputs.len();
    inputs.retain(|input| input.problem.is_some() || labels.of(&args.folder, &input.path).is_some());
    let unlabelled = found - inputs.len();
    if inputs.is_empty() {
        let folder = args.folder.display();
        bail!("the files of {folder} have no labels: give --labels, or put the files of each class in a subfolder");
    }

    let standalone = standalone(config);
    standalone.repository().load(&args.model, &Principal::Local).await?;
    let target = ModelTarget { model: args.model.clone(), version: args.model_version };
    let model = standalone.repository().pin(&target.model, target.version)?;
    let version = model.version;
    let names = model.signature.outputs.iter().find_map(|output| model.labels.get(&output.name)).cloned();
    // An unload waits for it.
    drop(model);

    let names = names.as_deref().unwrap_or_default();
    let (mut ranks, mut failed) = (Vec::new(), Vec::new());
    let take = |path: &std::path::Path, answer: infer::FileAnswer| {
        let label = labels.of(&args.folder, path).unwrap_or_default();
        match answer.and_then(|answer| rank(&answer, class_of(&label, names)?)) {
            Ok(rank) => ranks.push(rank),
            Err(reason) => failed.push((path.display().to_string(), reason)),
        }
    };
    infer::answer_files(standalone, &target, &inputs, take).await?;

    let (top1, top5) = (share(&ranks, 1), share(&ranks, 5));
    if args.json {
        let failed: Vec<_> = failed.iter().map(|(file, error)| json!({"file": file, "error": error})).collect();
        let report = json!({
            "model": args.model, "version": version, "files": ranks.len(), "top1": top1, "top5": top5,
            "unlabelled": unlabelled, "failed": failed,
        });
        writeln!(out, "{report:#}")?;
    } else {
        if let (Some(top1), Some(top5)) = (top1, top5) {
            let (top1, top5, files) = (100.0 * top1, 100.0 * top5, ranks.len());
            writeln!(out, "{} version {version}: top-1 {top1:.2} %, top-5 {top5:.2} % of {files} files", args.model)?;
        }
        if unlabelled > 0 {
            writeln!(out, "without a label: {unlabelled} of {found} files")?;
        }
        for (file, reason) in &failed {
            writeln!(out, "not answered: {file}: {reason}")?;
        }
    }
    Ok(if failed.is_empty() { Exit::Success } else { Exit::Failure })
}

fn class_of(label: &str, names: &[String]) -> Result<usize, String> {
    class(label, names)
        .ok_or_else(|| format!("the model has no class {label:?}: expected one of its labels, or a class number"))
}

/// The number of classes that an answer places before `class`; `None` when it leaves `class` out. Of equal scores the
/// first wins.
fn rank(answer: &Map<String, Value>, class: usize) -> Result<Option<usize>, String> {
    if let Some(ranking) = answer.get("labels").and_then(Value::as_array) {
        return Ok(ranking.iter().position(|label| label.get("index") == Some(&class.into())));
    }
    let output =
        answer.get("outputs").and_then(|outputs| outputs.get(0)).ok_or("the answer has no scores of classes")?;
    let numbers = |key| -> Option<Vec<f64>> { output.get(key)?.as_array()?.iter().map(Value::as_f64).collect() };
    if numbers("shape").is_none_or(|shape| shape.iter().filter(|side| **side > 1.0).count() > 1) {
        return Err("accuracy needs one row of scores, and the first output has several".to_owned());
    }
    let scores = numbers("data").ok_or("the first output contains values that are no numbers")?;
    let own = *scores.get(class).ok_or_else(|| format!("the model has {} classes, not {class}", scores.len()))?;
    let before = |(index, score): (usize, &f64)| *score > own || (score.total_cmp(&own).is_eq() && index < class);
    Ok(Some(scores.iter().enumerate().filter(|&one| before(one)).count()))
}

/// The share of the files that have their label among the first `limit` classes; `None` without files.
fn share(ranks: &[Option<usize>], limit: usize) -> Option<f64> {
    #[expect(clippy::cast_precision_loss, reason = "files are few")]
    let share = ranks.iter().flatten().filter(|rank| **rank < limit).count() as f64 / ranks.len() as f64;
    (!ranks.is_empty()).then_some(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(answer: &Value, classes: usize) -> Vec<Option<usize>> {
        (0..classes).map(|class| rank(answer.as_object().unwrap(), class).unwrap()).collect()
    }

    #[test]
    fn a_rank_counts_the_better_classes_and_of_equal_ones_the_first_wins() {
        let answer = json!({"outputs": [{"shape": [1, 4], "data": [0.1, 0.5, 0.9, 0.5]}]});
        assert_eq!(ranks(&answer, 4), [3, 1, 0, 2].map(Some));
        let error = |answer: &Value, class| rank(answer.as_object().unwrap(), class).unwrap_err();
        assert!(error(&answer, 4).contains("4 classes"));
        assert!(error(&json!({"outputs": [{"shape": [2, 2], "data": [0, 0, 0, 0]}]}), 0).contains("one row"));
        assert!(error(&json!({"outputs": [{"shape": [2], "data": [1, null]}]}), 0).contains("no numbers"));
        assert!(error(&json!({"detections": []}), 0).contains("no scores"));
    }

    #[test]
    fn a_class_that_a_ranking_leaves_out_has_no_rank() {
        let answer = json!({"labels": [{"label": "cat", "index": 2}, {"label": null, "index": 0}]});
        assert_eq!(ranks(&answer, 3), [Some(1), None, Some(0)]);
    }

    #[test]
    fn accuracy_is_a_share_of_the_labelled_files() {
        let ranks = [Some(0), Some(4), Some(5), Some(0), None];
        assert_eq!((share(&ranks, 1), share(&ranks, 5)), (Some(0.4), Some(0.6)));
        assert_eq!(share(&[], 1), None);
    }
}
