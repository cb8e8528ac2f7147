//! `[[golden]]` of `model.toml`: inputs with known answers.

use ledge_base::toml_check::ValueProblem;
use ledge_engine::pipeline::content::PipelineInput;
use ledge_engine::pipeline::kind::ExpectedDetection;
use serde::{Deserialize, Serialize};

/// An input with a known answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoldenConfig {
    /// A file next to `model.toml`: a photograph for an image model, else an inference request in JSON whose `outputs`
    /// have the expected data.
    pub file: String,
    /// Photographs: the label that must come first, or be that of the best box.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Photographs: the least score of that label, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_score: Option<f32>,
    /// Photographs in which objects are detected: the objects that must be found. With an empty list, no object may be
    /// found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detections: Option<Vec<ExpectedDetection>>,
    /// Documents: words that must be read, whatever their case, and with or without spaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<Vec<String>>,
    /// Photographs: a file next to `model.toml` with the expected data in its `outputs`, as in a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<String>,
    /// The largest absolute difference of any element of an output from the expected one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerance: Option<f64>,
    /// The largest Euclidean distance of an output from the expected one, as a share of the expected one's norm.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_relative_error: Option<f64>,
}

impl GoldenConfig {
    /// The mistakes that types cannot express.
    pub(super) fn mistakes(&self, has_pipeline: bool) -> Vec<ValueProblem> {
        const EXPECTED_FILE: &str = "expected a file next to model.toml";
        const NOT_NEGATIVE: &str = "expected 0 or more";
        // NaN is not a limit.
        let is_limit = |value: Option<f64>| value.is_none_or(|value| value >= 0.0);
        let belongs = format!(
            "it belongs to a photograph, and the model has no {}: put the expected outputs into the request",
            PipelineInput::Photograph.sections()
        );
        let checks = [
            (is_beside(&self.file), "golden.file", EXPECTED_FILE),
            (self.min_score.is_none_or(|score| (0.0..=1.0).contains(&score)), "golden.min_score", "expected 0 to 1"),
            (is_limit(self.tolerance), "golden.tolerance", NOT_NEGATIVE),
            (is_limit(self.max_relative_error), "golden.max_relative_error", NOT_NEGATIVE),
            (self.outputs.as_deref().is_none_or(is_beside), "golden.outputs", EXPECTED_FILE),
        ];
        let wrong = checks.into_iter().filter(|(holds, ..)| !holds);
        let problem = |(_, key, message)| ValueProblem::new(key, message);
        let mut problems: Vec<ValueProblem> = wrong.map(problem).collect();
        let detections = self.detections.iter().flatten().filter_map(ExpectedDetection::mistake);
        problems.extend(detections.map(|message| ValueProblem::new("golden.detections", message)));
        if self.outputs.is_some() && !has_pipeline {
            problems.push(ValueProblem::new("golden.outputs", belongs));
        }
        problems
    }
}

/// True when a file name stays in the model's folder.
pub(super) fn is_beside(file: &str) -> bool {
    let mut parts = std::path::Path::new(file).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, std::path::Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_and_a_file_lies_beside() {
        let mistakes = |keys: &str, has_pipeline: bool| -> Vec<String> {
            let golden: GoldenConfig = toml::from_str(keys).unwrap();
            golden.mistakes(has_pipeline).into_iter().map(|mistake| mistake.key).collect()
        };
        let good = "file = 'golden/a.png'\noutputs = 'golden/a.json'\nmax_relative_error = 0.2\ntolerance = 0";
        assert!(mistakes(good, true).is_empty());
        assert_eq!(mistakes(good, false), ["golden.outputs"]);
        for bad in ["nan", "-0.1", "-inf"] {
            assert_eq!(mistakes(&format!("file = 'a'\ntolerance = {bad}"), false), ["golden.tolerance"]);
            let relative = format!("file = 'a'\nmax_relative_error = {bad}");
            assert_eq!(mistakes(&relative, false), ["golden.max_relative_error"]);
        }
        for outside in ["../a", "/etc/passwd", "", "golden/../../a"] {
            assert_eq!(mistakes(&format!("file = '{outside}'"), true), ["golden.file"]);
            assert_eq!(mistakes(&format!("file = 'a'\noutputs = '{outside}'"), true), ["golden.outputs"]);
        }
    }
}
