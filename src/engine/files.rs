//! The facts about a model that its file shows without a runtime, for every format.
//!
//! Model files are foreign bytes. If models run in other processes, one of these reads the file, and the daemon checks
//! the facts by [`ModelFileFacts::check`]; otherwise the daemon reads it. Both by [`read`], which gives no facts that
//! the check refuses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::backend::{InputDangers, ModelFormat, ModelPortNames, Runtime, ZipMapOutput};
pub use crate::external_file::ExternalDataFile;
use crate::external_file::at_most;
pub(crate) use crate::external_file::check_path;
use crate::pipeline::quantization::Quantization;
use crate::text::REASON_BYTES_MAX;
use crate::{ir, onnx, tflite};

/// The most files with external data. An exporter wrote one for each weight, which were some thousands.
const EXTERNAL_FILES_MAX: usize = 1 << 14;

/// The most inputs, and the most outputs. A language model with the memory of each of its layers has some hundreds.
const PORTS_MAX: usize = 1 << 14;

/// The most bytes of the name of an input or output. Exporters write paths through a program, of some hundred bytes.
const NAME_BYTES_MAX: usize = 4096;

/// The most numbers of callers of one kind that a runtime has to be kept from. Each is an operator next to an input.
const DANGERS_MAX: usize = 1 << 16;

/// The most bytes of all names and texts. The most in a real model are the characters of one that reads Chinese: 40 kB.
const TEXT_BYTES_MAX: usize = 8 << 20;

/// The most bytes of the texts in the metadata; half of those of all, so that large ones refuse no model.
const METADATA_BYTES_MAX: usize = TEXT_BYTES_MAX / 2;

/// The facts about one model file.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ModelFileFacts {
    /// The files with external data (ONNX), each once and in the order of the bytes of their paths.
    pub external: Vec<ExternalDataFile>,
    /// The names of inputs and outputs in the file's order (ONNX).
    pub port_names: Option<ModelPortNames>,
    /// The harm that callers could do to a runtime.
    pub dangers: InputDangers,
    /// The outputs that are maps from classes to scores (ONNX).
    pub class_maps: Vec<ZipMapOutput>,
    /// The values of the integers of inputs and outputs, by their names (TFLite).
    pub quantization: BTreeMap<String, Quantization>,
    /// The texts that the file has for programs, by their keys (ONNX). Those beyond some megabytes are left out.
    pub metadata: BTreeMap<String, String>,
}

/// Reads `bytes`, the content of a model file. The error completes a sentence about the file.
pub fn read(format: ModelFormat, bytes: &[u8]) -> Result<ModelFileFacts, String> {
    let facts = match format {
        ModelFormat::Onnx => of_onnx(bytes)?,
        ModelFormat::OpenVinoIr => {
            if !bytes.trim_ascii_start().starts_with(b"<") {
                return Err("is not an OpenVINO IR: it is not XML".to_owned());
            }
            ModelFileFacts { dangers: ir::dangers(bytes), ..ModelFileFacts::default() }
        }
        ModelFormat::TfLite => {
            if bytes.get(4..8) != Some(b"TFL3") {
                return Err("is not a TFLite model: its identifier TFL3 is missing".to_owned());
            }
            let quantization = tflite::quantization(bytes).into_iter().collect();
            ModelFileFacts { dangers: tflite::dangers(bytes), quantization, ..ModelFileFacts::default() }
        }
    };
    facts.check(format)?;
    Ok(facts)
}

fn of_onnx(bytes: &[u8]) -> Result<ModelFileFacts, String> {
    let summary = onnx::summarize(bytes).map_err(|error| error.to_string())?;
    let mut left = METADATA_BYTES_MAX;
    let mut fits = |(key, value): &(String, String)| {
        let rest = left.checked_sub(key.len() + value.len());
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    Ok(ModelFileFacts {
        external: summary.external_data,
        port_names: Some(summary.port_names),
        dangers: summary.dangers,
        class_maps: summary.class_maps,
        quantization: BTreeMap::new(),
        metadata: summary.metadata.into_iter().filter(|entry| fits(entry)).collect(),
    })
}

impl ModelFileFacts {
    /// Refuses facts that no file of this format has, and more of them than any model. The error completes a sentence
    /// about the file.
    pub fn check(&self, format: ModelFormat) -> Result<(), String> {
        let Self { external, port_names, dangers, class_maps, quantization, metadata } = self;
        if port_names.is_some() != (format == ModelFormat::Onnx) {
            return Err(format!("has names of inputs and outputs that are not those of {} files", format.as_str()));
        }
        if format != ModelFormat::Onnx && !(external.is_empty() && class_maps.is_empty() && metadata.is_empty()) {
            return Err(format!("has facts that no {} file has", format.as_str()));
        }
        at_most("files of external data", external.len(), EXTERNAL_FILES_MAX)?;
        for file in external {
            check_path(&file.path)?;
        }
        // In the order of the hashes in a digest.
        if !external.is_sorted_by(|one, next| one.path.as_os_str() < next.path.as_os_str()) {
            return Err("refers to a file of external data twice".to_owned());
        }
        self.check_names()?;

        let InputDangers { refused, rows, widths, divisors, filled, bits, has_control_flow: _ } = dangers;
        at_most("reasons against runtimes", refused.len(), DANGERS_MAX)?;
        for numbers in [rows.len(), widths.len(), divisors.len(), filled.len()] {
            at_most("inputs that choose, fill or divide", numbers, DANGERS_MAX)?;
        }
        at_most("limits of integers", bits.len(), Runtime::ALL.len())?;
        if bits.iter().any(|(_, bits)| *bits == 0) {
            return Err("has a limit of integers without bits".to_owned());
        }
        if refused.iter().any(|(_, reason)| reason.len() > REASON_BYTES_MAX) {
            return Err(format!("has a reason against a runtime of over {REASON_BYTES_MAX} bytes"));
        }
        if rows.iter().chain(widths).any(|(_, length)| *length < 1) {
            return Err("has a table or a matrix without rows".to_owned());
        }
        at_most("quantized inputs and outputs", quantization.len(), PORTS_MAX)?;
        if !quantization.values().all(|quantization| quantization.is_valid()) {
            return Err("has a scale that is no positive number".to_owned());
        }
        at_most("bytes of names and texts", self.text_bytes(), TEXT_BYTES_MAX)
    }

    fn check_names(&self) -> Result<(), String> {
        let Some(ModelPortNames { inputs, outputs }) = &self.port_names else { return Ok(()) };
        at_most("inputs", inputs.len(), PORTS_MAX)?;
        at_most("outputs", outputs.len(), PORTS_MAX)?;
        if let Some(long) = inputs.iter().chain(outputs).find(|name| name.len() > NAME_BYTES_MAX) {
            return Err(format!("has an input or output with a name of {} bytes", long.len()));
        }
        for map in &self.class_maps {
            if !outputs.contains(&map.output) || map.classes.is_empty() {
                return Err("has classes of no output, or an output without classes".to_owned());
            }
        }
        at_most("maps of classes", self.class_maps.len(), outputs.len())
    }

    /// The bytes of all names and texts. Each counts some more, for the memory that an empty one takes.
    fn text_bytes(&self) -> usize {
        const EACH: usize = 4;
        let ports = self.port_names.iter().flat_map(|names| names.inputs.iter().chain(&names.outputs));
        let paths = self.external.iter().map(|file| file.path.as_os_str().len());
        let maps = self.class_maps.iter().flat_map(|map| map.classes.iter().chain([&map.output, &map.scores]));
        let metadata = self.metadata.iter().flat_map(|(key, value)| [key, value]);
        let InputDangers { refused, rows, widths, divisors, filled, bits: _, has_control_flow: _ } = &self.dangers;
        let dangers = refused.iter().map(|(_, reason)| reason).chain(rows.iter().chain(widths).map(|(name, _)| name));
        let divisors = divisors.iter().flat_map(|divisor| std::iter::once(&divisor.input).chain(&divisor.dividend));
        let texts = ports.chain(maps).chain(metadata).chain(dangers).chain(divisors).chain(filled);
        let texts = texts.chain(self.quantization.keys());
        texts.map(String::len).chain(paths).map(|length| length + EACH).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::backend::Divisor;
    use crate::text::shortened;

    fn onnx(change: impl FnOnce(&mut ModelFileFacts)) -> Result<(), String> {
        let port_names = ModelPortNames { inputs: vec!["x".into()], outputs: vec!["y".into()] };
        let mut facts = ModelFileFacts { port_names: Some(port_names), ..ModelFileFacts::default() };
        assert_eq!(facts.check(ModelFormat::Onnx), Ok(()));
        change(&mut facts);
        facts.check(ModelFormat::Onnx)
    }

    fn refused(because: &str, change: impl FnOnce(&mut ModelFileFacts)) {
        let reason = onnx(change).unwrap_err();
        assert!(reason.contains(because), "{reason}");
        assert!(reason.len() < 1000);
    }

    fn at(paths: &[&str]) -> Vec<ExternalDataFile> {
        paths.iter().map(|path| ExternalDataFile { path: path.into(), bytes: 1 }).collect()
    }

    fn many(count: usize) -> Vec<String> {
        (0..count).map(|number| number.to_string()).collect()
    }

    #[test]
    fn external_data_outside_the_folder_is_refused_whoever_says_it() {
        for outside in ["/etc/passwd", "../w", "a/../../w", "", "*/_ORT_MEM_ADDR_/*"] {
            refused("outside its own folder", |facts| facts.external = at(&[outside]));
        }
        refused("outside its own folder", |facts| facts.external = at(&[&format!("/{}", "a".repeat(1 << 20))]));
        refused("4096 bytes in the path", |facts| facts.external = at(&[&"a".repeat(4096)]));
        refused("twice", |facts| facts.external = at(&["a", "a"]));
        refused("twice", |facts| facts.external = at(&["b", "a"]));
        refused("16385 files", |facts| facts.external = at(&vec!["w"; 16_385]));
        assert_eq!(onnx(|facts| facts.external = at(&["./w", "a-w", "a/w"])), Ok(()));
    }

    #[test]
    fn more_than_any_model_has_is_refused() {
        fn names(facts: &mut ModelFileFacts) -> &mut ModelPortNames {
            facts.port_names.as_mut().unwrap()
        }
        refused("16385 inputs", |facts| names(facts).inputs = many(16_385));
        refused("16385 outputs", |facts| names(facts).outputs = many(16_385));
        refused("a name of 5000 bytes", |facts| names(facts).outputs.push("y".repeat(5000)));
        refused("65537 inputs that choose", |facts| facts.dangers.rows = vec![("x".into(), 1); (1 << 16) + 1]);
        let divisor = Divisor { input: "x".into(), dividend: None };
        refused("65537 inputs that choose", |facts| facts.dangers.divisors = vec![divisor; (1 << 16) + 1]);
        refused("without rows", |facts| facts.dangers.widths = vec![("x".into(), 0)]);
        let reason = (Runtime::OpenVino, "y".repeat(5000));
        refused("a reason", |facts| facts.dangers.refused = vec![reason]);
        refused("without bits", |facts| facts.dangers.bits = vec![(Runtime::OpenVino, 0)]);
        let large = "y".repeat(9 << 20);
        refused("bytes of names and texts", |facts| facts.metadata = [("k".to_owned(), large)].into());
        let map = |output: &str, classes| ZipMapOutput { output: output.into(), scores: "s".into(), classes };
        refused("bytes of names and texts", |facts| facts.class_maps = vec![map("y", vec![String::new(); 1 << 22])]);
        refused("classes of no output", |facts| facts.class_maps = vec![map("z", many(2))]);
        refused("without classes", |facts| facts.class_maps = vec![map("y", many(0))]);
        refused("2 maps of classes", |facts| facts.class_maps = vec![map("y", many(2)); 2]);
        let nothing = Quantization { scale: f32::NAN, zero_point: 0 };
        refused("no positive number", |facts| facts.quantization = [("x".to_owned(), nothing)].into());
    }

    #[test]
    fn facts_of_another_format_are_refused() {
        let empty = ModelFileFacts::default();
        assert!(empty.check(ModelFormat::Onnx).is_err());
        for format in [ModelFormat::TfLite, ModelFormat::OpenVinoIr] {
            assert_eq!(empty.check(format), Ok(()));
            let refused = |facts: ModelFileFacts| assert!(facts.check(format).is_err(), "{facts:?}");
            refused(ModelFileFacts { external: at(&["w"]), ..ModelFileFacts::default() });
            refused(ModelFileFacts { metadata: [("k".to_owned(), String::new())].into(), ..ModelFileFacts::default() });
            let names = ModelPortNames { inputs: many(1), outputs: many(1) };
            refused(ModelFileFacts { port_names: Some(names), ..ModelFileFacts::default() });
        }
    }

    #[test]
    fn a_graph_within_the_graph_of_an_ir_is_found() {
        let flow = |xml: &[u8]| read(ModelFormat::OpenVinoIr, xml).unwrap().dangers.has_control_flow;
        assert!(!flow(b"  <net/>"));
        assert!(flow(b"<net><layers><layer type=\"If\"/></layers></net>"));
        assert_eq!(read(ModelFormat::OpenVinoIr, b"\x89PNG").unwrap_err(), "is not an OpenVINO IR: it is not XML");
        assert!(read(ModelFormat::TfLite, b"\x89PNG\r\n\x1a\n").unwrap_err().contains("is not a TFLite model"));
    }

    #[test]
    fn a_text_of_a_file_is_shortened_between_characters() {
        assert_eq!(shortened("abc"), "abc");
        assert_eq!(shortened(&"é".repeat(200)).chars().count(), 123);
    }

    proptest! {
        #[test]
        fn whatever_is_read_passes_the_check(bytes: Vec<u8>) {
            let tflite = [&bytes[..bytes.len().min(4)], b"TFL3", &bytes].concat();
            for (format, bytes) in [
                (ModelFormat::Onnx, bytes.clone()), (ModelFormat::TfLite, tflite), (ModelFormat::OpenVinoIr, [b"<", &bytes[..]].concat()),
            ] {
                if let Ok(facts) = read(format, &bytes) {
                    prop_assert_eq!(facts.check(format), Ok(()));
                }
            }
        }
    }
}
