//! The facts of which a pipeline is made, as plain data: another process can bind the same pipeline.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::PipelineConfig;
use super::kind::{ModelFacts, Pipeline};
use super::ocr::fields::DocumentFieldDeclaration;
use super::quantization::Quantization;
use crate::backend::ModelSignature;

/// The facts of which the pipeline of a model is made: [`ModelFacts`], owned, with the section.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PipelineSetup {
    /// The table `[pipeline]` of `model.toml` as JSON.
    pub config: String,
    /// `[[field]]` of `model.toml` as JSON.
    pub fields: String,
    pub signature: ModelSignature,
    /// The class names of outputs, by output name.
    pub labels: HashMap<String, Arc<[String]>>,
    /// The quantization of inputs and outputs, by name, where it is known.
    pub quantization: HashMap<String, Quantization>,
    /// The content of the files that the section names, by their names.
    pub files: HashMap<String, Bytes>,
    /// The signatures of the models of a chain, by the names of the parts.
    pub parts: HashMap<String, ModelSignature>,
    /// The metadata of their ONNX files, by the names of the parts.
    pub part_metadata: HashMap<String, HashMap<String, String>>,
}

impl PipelineSetup {
    /// A setup for a model without any facts; the caller sets those that it has.
    pub fn new(config: &PipelineConfig, fields: &[DocumentFieldDeclaration]) -> Result<Self, String> {
        let json = |name: &str, json: serde_json::Result<String>| json.map_err(|error| format!("{name}: {error}"));
        Ok(Self {
            config: json("pipeline", serde_json::to_string(config))?,
            fields: json("field", serde_json::to_string(fields))?,
            signature: ModelSignature::default(),
            labels: HashMap::new(),
            quantization: HashMap::new(),
            files: HashMap::new(),
            parts: HashMap::new(),
            part_metadata: HashMap::new(),
        })
    }

    /// The pipeline, or the reason why the section does not fit the model's tensors.
    pub fn bind(&self) -> Result<Arc<dyn Pipeline>, String> {
        let config: PipelineConfig =
            serde_json::from_str(&self.config).map_err(|error| format!("pipeline: {error}"))?;
        let fields: Vec<DocumentFieldDeclaration> =
            serde_json::from_str(&self.fields).map_err(|error| format!("field: {error}"))?;
        let section = config.section().ok_or("the model has no pipeline")?;
        let Self { signature, labels, quantization, files, parts, part_metadata, .. } = self;
        section.bind(ModelFacts { signature, labels, quantization, files, parts, part_metadata, fields: &fields })
    }
}

#[cfg(test)]
mod tests {
    use ledge_base::tensor::DataType;

    use super::*;
    use crate::backend::ModelPort;

    #[derive(Deserialize)]
    struct ModelToml {
        pipeline: PipelineConfig,
        #[serde(default)]
        field: Vec<DocumentFieldDeclaration>,
    }

    #[test]
    fn a_pipeline_is_bound_of_a_setup_that_passed_a_boundary() {
        let config: PipelineConfig = toml::from_str("image_classification = { crop = [2, 2], top_k = 1 }").unwrap();
        let port =
            |name: &str, shape: &[i64]| ModelPort { name: name.into(), datatype: DataType::Fp32, shape: shape.into() };
        let setup = PipelineSetup {
            signature: ModelSignature { inputs: vec![port("x", &[1, 3, 2, 2])], outputs: vec![port("y", &[1, 2])] },
            labels: HashMap::from([("y".to_owned(), ["a".to_owned(), "b".to_owned()].into())]),
            quantization: HashMap::from([("y".to_owned(), Quantization { scale: 0.1, zero_point: 3 })]),
            files: HashMap::from([("a.txt".to_owned(), Bytes::from_static(b"\xff\0"))]),
            ..PipelineSetup::new(&config, &[]).unwrap()
        };
        let again: PipelineSetup = postcard::from_bytes(&postcard::to_stdvec(&setup).unwrap()).unwrap();
        assert_eq!(again, setup);
        assert_eq!(format!("{:?}", again.bind().unwrap()), format!("{:?}", setup.bind().unwrap()));
        let none = PipelineSetup::new(&PipelineConfig::default(), &[]).unwrap();
        assert_eq!(none.bind().unwrap_err(), "the model has no pipeline");
    }

    #[test]
    fn the_sections_of_our_models_are_the_same_as_json() {
        let models = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
        let mut checked = 0;
        for folder in std::fs::read_dir(models).unwrap() {
            let Ok(text) = std::fs::read_to_string(folder.unwrap().path().join("model.toml")) else { continue };
            let Ok(ModelToml { pipeline, field }) = toml::from_str(&text) else { continue };
            let setup = PipelineSetup::new(&pipeline, &field).unwrap();
            assert_eq!(serde_json::from_str::<PipelineConfig>(&setup.config).unwrap(), pipeline);
            assert_eq!(serde_json::from_str::<Vec<DocumentFieldDeclaration>>(&setup.fields).unwrap(), field);
            checked += 1;
        }
        assert!(checked > 2, "{checked}");
    }
}
