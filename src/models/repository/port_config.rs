//! `[[input]]` and `[[output]]` of `model.toml`: properties of an input or output beyond the model file.

use ledge_base::tensor::DataType;
use ledge_engine::backend::ModelPort;
use ledge_engine::pipeline::classification::is_quantized;
use ledge_engine::pipeline::quantization::Quantization;
use serde::{Deserialize, Serialize};

use super::feature_config::InputFeature;

/// Properties of one input or output beyond the model file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortConfig {
    /// Its name in the model.
    pub name: String,
    /// Its datatype; must be the model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datatype: Option<DataType>,
    /// Its shape, the batch included; may fix dimensions that are variable in the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<i64>>,
    /// Outputs: the file next to `model.toml` with the name of each class, one a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<String>,
    /// Value of its integers, `scale * (integer - zero_point)`, where the model's file does not say or is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantization: Option<Quantization>,
    /// Inputs: the features that a row is made of, in this order, for callers that send entity keys instead of it. A
    /// list becomes several elements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<InputFeature>,
}

impl PortConfig {
    /// Fixes the variable dimensions of `port`, or returns the contradiction in this config.
    pub(super) fn narrow(&self, kind: &str, port: &mut ModelPort) -> Option<String> {
        if let Some(datatype) = self.datatype
            && datatype != port.datatype
        {
            return Some(format!("{kind} {:?} has datatype {}, not {datatype}", port.name, port.datatype));
        }
        if self.quantization.is_some() && !is_quantized(port.datatype) {
            return Some(format!(
                "{kind} {:?} is {}: quantization is for integers of up to 32 bits",
                port.name, port.datatype
            ));
        }
        let shape = self.shape.as_ref()?;
        let fits = shape.len() == port.shape.len()
            && shape.iter().zip(&port.shape).all(|(&wanted, &dim)| dim == -1 || wanted == dim);
        if !fits {
            return Some(format!(
                "{kind} {:?} has shape {:?} in the model, and {shape:?} does not fit it",
                port.name, port.shape
            ));
        }
        port.shape.clone_from(shape);
        None
    }
}
