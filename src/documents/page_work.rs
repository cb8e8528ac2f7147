//! The work that a page of a PDF asks for, counted before any of it is done.
//!
//! A few kB can ask for any amount of work: forms that call each other, patterns of a million cells, operators that
//! were a thousand times smaller before they were inflated. hayro has no limits, and cannot be stopped. So the
//! operators of a page are read here first in the order in which hayro interprets them, and counted with their bytes
//! and with those of the forms, patterns, glyphs and soft masks that they call, as often as they call them. The count
//! itself ends at its limit.
//!
//! The cost of an operator also depends on its operands, such as the function of a shading. Costs that are not counted
//! here are bounded by the CPU time of the page (`process.rs`).

use std::collections::HashMap;
use std::rc::Rc;

use hayro::hayro_syntax::content::TypedIter;
use hayro::hayro_syntax::content::ops::TypedInstruction as Operator;
use hayro::hayro_syntax::object::{Array, Dict, Name, Object, Rect, Stream};
use hayro::hayro_syntax::page::{Page, Resources};

use crate::order::DocumentDefect;

/// The most work of a page, in operators. Dense maps and drawings have some 100,000.
const OPERATORS_MAX: u64 = 2_000_000;
/// Bytes of content that take as long to inflate and to read as an operator.
const BYTES_PER_OPERATOR: u64 = 16;
/// Pixels of an image that take as long to decode.
const PIXELS_PER_OPERATOR: u64 = 256;
/// A form, a glyph or a cell of a pattern: it has its own graphics state, resources and clip.
const CALL: u64 = 20;
/// A separate layer as large as the page: a transparency group, a soft mask, an image, a pattern.
const LAYER: u64 = 200;
/// A shading is computed for each pixel.
const SHADING: u64 = 1000;
/// hayro ignores operators that are nested deeper.
const NESTING_MAX: usize = 50;

/// Fails for a page that asks for too much.
pub(crate) fn check(page: &Page<'_>, number: usize) -> Result<(), DocumentDefect> {
    let mut count = PageWorkBudget { left: OPERATORS_MAX, nesting: 0 };
    count.page(page).map_err(|WorkLimitExceeded| DocumentDefect::Work { page: number, most: OPERATORS_MAX })
}

struct WorkLimitExceeded;

struct PageWorkBudget {
    left: u64,
    nesting: usize,
}

/// The settings that operators make, which decide what others cost.
#[derive(Clone, Default)]
struct GraphicsState<'a> {
    fill: Option<FillPattern<'a>>,
    stroke: Option<FillPattern<'a>>,
    font: Option<Rc<GlyphPrograms<'a>>>,
}

#[derive(Clone)]
enum FillPattern<'a> {
    Tiling(Rc<Stream<'a>>),
    Shading,
}

/// The glyphs of a Type 3 font, each of which is drawn by operators.
struct GlyphPrograms<'a> {
    by_code: HashMap<u8, Stream<'a>>,
    resources: Option<Resources<'a>>,
}

impl PageWorkBudget {
    fn page(&mut self, page: &Page<'_>) -> Result<(), WorkLimitExceeded> {
        let resources = page.resources();
        self.operators(page.page_stream().unwrap_or_default(), resources)?;
        for annotation in items(page.raw(), "Annots").filter_map(Object::into_dict) {
            if let Some(appearance) = appearance(&annotation) {
                self.call(&appearance, resources)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, operators: u64) -> Result<(), WorkLimitExceeded> {
        self.left = self.left.checked_sub(operators).ok_or(WorkLimitExceeded)?;
        Ok(())
    }

    /// A stream of operators with its own resources, or those of its caller.
    fn call<'a>(&mut self, stream: &Stream<'a>, inherited: &Resources<'a>) -> Result<(), WorkLimitExceeded> {
        self.take(CALL)?;
        if self.nesting >= NESTING_MAX {
            return Ok(());
        }
        let Ok(content) = stream.decoded_data() else { return Ok(()) };
        if stream.dict().contains_key("Group") {
            self.take(LAYER)?;
        }
        let own = stream.dict().get::<Dict<'a>>("Resources").map(Resources::new);
        self.nesting += 1;
        let counted = self.operators(&content, own.as_ref().unwrap_or(inherited));
        self.nesting -= 1;
        counted
    }

    fn operators(&mut self, content: &[u8], resources: &Resources<'_>) -> Result<(), WorkLimitExceeded> {
        self.take(content.len() as u64 / BYTES_PER_OPERATOR)?;
        let (mut state, mut saved) = (Rc::new(GraphicsState::default()), Vec::new());
        let mut operators = TypedIter::new(content);
        while let Some(operator) = operators.next() {
            self.take(1)?;
            match operator {
                Operator::SaveState(_) => saved.push(state.clone()),
                Operator::RestoreState(_) => state = saved.pop().unwrap_or(state),
                Operator::XObject(name) => {
                    if let Some(stream) = resources.get_x_object(name.0) {
                        self.x_object(&stream, resources)?;
                    }
                }
                Operator::InlineImage(image) => self.image(image.0.dict())?,
                Operator::SetGraphicsState(name) => {
                    if let Some(settings) = resources.get_ext_g_state(name.0) {
                        self.soft_mask(&settings, resources)?;
                        if let Some(font) = items(&settings, "Font").find_map(Object::into_dict) {
                            Rc::make_mut(&mut state).font = GlyphPrograms::of(&font);
                        }
                    }
                }
                Operator::TextFont(font) => {
                    let font = resources.get_font(font.0);
                    Rc::make_mut(&mut state).font = font.and_then(|font| GlyphPrograms::of(&font));
                }
                Operator::NonStrokeColorNamed(color) => {
                    Rc::make_mut(&mut state).fill = color.1.and_then(|name| pattern(resources, name));
                }
                Operator::StrokeColorNamed(color) => {
                    Rc::make_mut(&mut state).stroke = color.1.and_then(|name| pattern(resources, name));
                }
                Operator::NonStrokeColor(_)
                | Operator::NonStrokeColorDeviceGray(_)
                | Operator::NonStrokeColorDeviceRgb(_)
                | Operator::NonStrokeColorCmyk(_) => Rc::make_mut(&mut state).fill = None,
                Operator::StrokeColor(_)
                | Operator::StrokeColorDeviceGray(_)
                | Operator::StrokeColorDeviceRgb(_)
                | Operator::StrokeColorCmyk(_) => Rc::make_mut(&mut state).stroke = None,
                Operator::ClipNonZero(_) | Operator::ClipEvenOdd(_) => self.take(CALL)?,
                Operator::Shading(_) => self.take(SHADING)?,
                Operator::FillPathNonZero(_)
                | Operator::FillPathNonZeroCompatibility(_)
                | Operator::FillPathEvenOdd(_) => self.paint(state.fill.as_ref(), resources)?,
                Operator::StrokePath(_) | Operator::CloseAndStrokePath(_) => {
                    self.paint(state.stroke.as_ref(), resources)?;
                }
                Operator::FillAndStrokeNonZero(_)
                | Operator::FillAndStrokeEvenOdd(_)
                | Operator::CloseFillAndStrokeNonZero(_)
                | Operator::CloseFillAndStrokeEvenOdd(_) => self.paint_both(&state, resources)?,
                Operator::ShowText(text) => self.text(text.0, &state, resources)?,
                Operator::NextLineAndShowText(text) => self.text(text.0, &state, resources)?,
                Operator::ShowTextWithParameters(text) => self.text(text.2, &state, resources)?,
                Operator::ShowTexts(texts) => {
                    for text in texts.0.iter::<Object<'_>>() {
                        match text {
                            Object::String(text) => self.text(&text, &state, resources)?,
                            _ => self.take(1)?,
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn x_object<'a>(&mut self, stream: &Stream<'a>, resources: &Resources<'a>) -> Result<(), WorkLimitExceeded> {
        match stream.dict().get::<Name<'a>>("Subtype").as_deref() {
            Some(b"Form") => self.call(stream, resources),
            Some(b"Image") => {
                self.image(stream.dict())?;
                for mask in ["SMask", "Mask"] {
                    if let Some(mask) = stream.dict().get::<Stream<'a>>(mask) {
                        self.image(mask.dict())?;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn image(&mut self, image: &Dict<'_>) -> Result<(), WorkLimitExceeded> {
        let side = |short: &str, long: &str| image.get::<u32>(short).or_else(|| image.get::<u32>(long)).unwrap_or(0);
        let pixels = u64::from(side("W", "Width")) * u64::from(side("H", "Height"));
        self.take(LAYER + pixels / PIXELS_PER_OPERATOR)
    }

    fn soft_mask<'a>(&mut self, settings: &Dict<'a>, resources: &Resources<'a>) -> Result<(), WorkLimitExceeded> {
        let mask = settings.get::<Dict<'a>>("SMask").and_then(|mask| mask.get::<Stream<'a>>("G"));
        match mask {
            Some(group) => self.call(&group, resources),
            None => Ok(()),
        }
    }

    fn paint_both<'a>(
        &mut self,
        state: &GraphicsState<'a>,
        resources: &Resources<'a>,
    ) -> Result<(), WorkLimitExceeded> {
        self.paint(state.fill.as_ref(), resources)?;
        self.paint(state.stroke.as_ref(), resources)
    }

    fn paint<'a>(
        &mut self,
        pattern: Option<&FillPattern<'a>>,
        resources: &Resources<'a>,
    ) -> Result<(), WorkLimitExceeded> {
        match pattern {
            None => Ok(()),
            Some(FillPattern::Shading) => self.take(SHADING),
            Some(FillPattern::Tiling(stream)) => {
                self.take(LAYER)?;
                let before = self.left;
                self.call(stream, resources)?;
                let cell = before - self.left;
                self.take(cell.saturating_mul(cells(stream.dict()) - 1))
            }
        }
    }

    fn text<'a>(
        &mut self,
        text: &[u8],
        state: &GraphicsState<'a>,
        resources: &Resources<'a>,
    ) -> Result<(), WorkLimitExceeded> {
        self.take(text.len() as u64)?;
        if let Some(font) = &state.font {
            for program in text.iter().filter_map(|code| font.by_code.get(code)) {
                self.call(program, font.resources.as_ref().unwrap_or(resources))?;
            }
        }
        self.paint_both(state, resources)
    }
}

impl<'a> GlyphPrograms<'a> {
    /// `None` for a font of outlines.
    fn of(font: &Dict<'a>) -> Option<Rc<Self>> {
        if font.get::<Name<'a>>("Subtype").as_deref() != Some(b"Type3") {
            return None;
        }
        let programs = font.get::<Dict<'a>>("CharProcs")?;
        // Letters have names of one letter in every encoding.
        let mut by_code: HashMap<_, _> =
            (0..=u8::MAX).filter_map(|code| Some((code, programs.get::<Stream<'a>>([code])?))).collect();
        let mut code = 0_u8;
        if let Some(encoding) = font.get::<Dict<'a>>("Encoding") {
            for item in items(&encoding, "Differences") {
                match item {
                    Object::Name(name) => {
                        by_code.extend(programs.get::<Stream<'a>>(&*name).map(|program| (code, program)));
                        code = code.wrapping_add(1);
                    }
                    item => code = item.into_u8().unwrap_or(code),
                }
            }
        }
        Some(Rc::new(Self { by_code, resources: font.get::<Dict<'a>>("Resources").map(Resources::new) }))
    }
}

fn pattern<'a>(resources: &Resources<'a>, name: &Name<'_>) -> Option<FillPattern<'a>> {
    match resources.get_pattern(name)? {
        Object::Stream(stream) => Some(FillPattern::Tiling(Rc::new(stream))),
        Object::Dict(_) => Some(FillPattern::Shading),
        _ => None,
    }
}

/// The number of times that the operators of a pattern are interpreted for each painting: cells may overlap.
fn cells(pattern: &Dict<'_>) -> u64 {
    let Some(Rect { x0, y0, x1, y1 }) = pattern.get::<Rect>("BBox") else { return 1 };
    let along = |side: f64, step: &str| {
        let step = pattern.get::<f32>(step).map_or(0.0, f64::from).abs();
        let count = (side / step).ceil() + 1.0;
        if count.is_finite() { count } else { 1.0 }
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at least 1, and the cast saturates")]
    let cells = (along(x1 - x0, "XStep") * along(y1 - y0, "YStep")) as u64;
    cells.max(1)
}

/// The form that an annotation is drawn as.
fn appearance<'a>(annotation: &Dict<'a>) -> Option<Stream<'a>> {
    match annotation.get::<Dict<'a>>("AP")?.get::<Object<'a>>("N")? {
        Object::Stream(form) => Some(form),
        Object::Dict(states) => {
            let state = annotation.get::<Name<'a>>("AS");
            state.and_then(|state| states.get::<Stream<'a>>(&*state)).or_else(|| states.get::<Stream<'a>>("Off"))
        }
        _ => None,
    }
}

/// The items of an array in a dictionary.
fn items<'a>(dict: &Dict<'a>, key: &str) -> impl Iterator<Item = Object<'a>> {
    dict.get::<Array<'a>>(key).into_iter().flat_map(|array| array.iter::<Object<'a>>())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use hayro::hayro_syntax::Pdf;

    use super::*;

    /// A file of one page with this content. `resources` names the objects of `more`, which begin with number 5.
    fn pdf(content: &[u8], keys: &str, resources: &str, more: &[Vec<u8>]) -> Vec<u8> {
        let page = format!(
            "<</Type /Page /Parent 2 0 R /MediaBox [0 0 99 99] /Contents 4 0 R /Resources <<{resources}>> {keys}>>"
        );
        let mut objects = vec![
            b"<</Type /Catalog /Pages 2 0 R>>".to_vec(),
            b"<</Type /Pages /Kids [3 0 R] /Count 1>>".to_vec(),
            page.into_bytes(),
            stream("", content),
        ];
        objects.extend_from_slice(more);
        let (mut file, mut places) = (b"%PDF-1.7\n".to_vec(), String::from("0000000000 65535 f \n"));
        for (object, number) in objects.iter().zip(1..) {
            writeln!(places, "{:010} 00000 n ", file.len()).unwrap();
            file.extend(format!("{number} 0 obj\n").bytes());
            file.extend(object);
            file.extend(b"\nendobj\n");
        }
        let (start, size) = (file.len(), objects.len() + 1);
        let end = format!("xref\n0 {size}\n{places}trailer <</Size {size} /Root 1 0 R>>\nstartxref\n{start}\n%%EOF");
        file.extend(end.bytes());
        file
    }

    fn stream(keys: &str, bytes: &[u8]) -> Vec<u8> {
        let mut object = format!("<<{keys} /Length {}>>\nstream\n", bytes.len()).into_bytes();
        object.extend(bytes);
        object.extend(b"\nendstream");
        object
    }

    /// Forms that each call the next one a number of times.
    fn forms(count: usize, calls: usize) -> Vec<Vec<u8>> {
        let form = |index: usize| {
            let next = format!("/Resources <</XObject <</N {} 0 R>>>>", 6 + index);
            let keys = format!("/Type /XObject /Subtype /Form /BBox [0 0 9 9] {next}");
            stream(&keys, "/N Do ".repeat(calls).as_bytes())
        };
        (0..count).map(form).collect()
    }

    #[track_caller]
    fn check_all(files: &[(&str, Vec<u8>)], expected: &Result<(), DocumentDefect>) {
        for (name, file) in files {
            let pdf = Pdf::new(file.clone()).unwrap();
            assert_eq!(check(&pdf.pages()[0], 1), *expected, "{name}");
        }
    }

    #[test]
    fn a_page_that_asks_for_too_much_is_refused_whatever_repeats_it() {
        let many = |operators: &str, times: usize| operators.repeat(times).into_bytes();
        let drawing = many("0 0 m 1 1 l S ", 1000);
        let form = |keys: &str| stream(&format!("/Type /XObject /Subtype /Form /BBox [0 0 9 9] {keys}"), &drawing);
        // 128 spaces for two bytes, and the mark of the end.
        let spaces = stream("/Filter /RunLengthDecode", &[&[129, b' '].repeat(1 << 19)[..], &[128]].concat());
        let mut inflated = pdf(b"", "", "", &[spaces]);
        let at = inflated.windows(14).position(|bytes| bytes == b"/Contents 4 0 ").unwrap();
        inflated[at + 10] = b'5';
        let pattern = "/Type /Pattern /PatternType 1 /PaintType 1 /TilingType 1 /BBox [0 0 900 900] /XStep 1 /YStep 1 /Resources <<>>";
        let glyphs = "<</Type /Font /Subtype /Type3 /FontBBox [0 0 9 9] /FontMatrix [1 0 0 1 0 0] /CharProcs <</star 6 0 R>> \
                      /Encoding <</Differences [65 /star]>> /FirstChar 65 /LastChar 65 /Widths [9]>>";
        let mask = "<</SMask <</S /Alpha /G 6 0 R>>>>";
        let annotation = "<</Type /Annot /Subtype /Stamp /Rect [0 0 9 9] /AP <</N 6 0 R>>>>";
        let annotations = format!("/Annots [{}]", "5 0 R ".repeat(1000));
        let image = stream(
            "/Type /XObject /Subtype /Image /Width 9999 /Height 9999 /BitsPerComponent 8 /ColorSpace /DeviceGray",
            b"x",
        );
        check_all(
            &[
                ("operators", pdf(&many("0 0 1 1 re f ", 1_000_001), "", "", &[])),
                ("states", pdf(&many("q ", 2_000_001), "", "", &[])),
                ("forms that double", pdf(b"/N Do", "", "/XObject <</N 5 0 R>>", &forms(30, 2))),
                ("a form that is called often", pdf(&many("/N Do ", 1000), "", "/XObject <</N 5 0 R>>", &[form("")])),
                ("inflated bytes", inflated),
                (
                    "cells of a pattern",
                    pdf(
                        b"/Pattern cs /P scn 0 0 9 9 re f",
                        "",
                        "/Pattern <</P 5 0 R>>",
                        &[stream(pattern, b"0 0 1 1 re f")],
                    ),
                ),
                (
                    "glyphs",
                    pdf(
                        format!("BT /F 9 Tf ({}) Tj ET", "A".repeat(1000)).as_bytes(),
                        "",
                        "/Font <</F 5 0 R>>",
                        &[glyphs.into(), form("")],
                    ),
                ),
                (
                    "soft masks",
                    pdf(
                        &many("/M gs ", 1000),
                        "",
                        "/ExtGState <</M 5 0 R>>",
                        &[mask.into(), form("/Group <</S /Transparency>>")],
                    ),
                ),
                ("annotations", pdf(b"", &annotations, "", &[annotation.into(), form("")])),
                (
                    "groups",
                    pdf(
                        &many("/N Do ", 10_000),
                        "",
                        "/XObject <</N 5 0 R>>",
                        &[stream("/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Group <</S /Transparency>>", b"")],
                    ),
                ),
                ("clips", pdf(&many("0 0 9 9 re W n ", 100_000), "", "", &[])),
                ("shadings", pdf(&many("/S sh ", 2000), "", "/Shading <</S <</ShadingType 1>>>>", &[])),
                ("images", pdf(&many("/I Do ", 6), "", "/XObject <</I 5 0 R>>", &[image])),
            ],
            &Err(DocumentDefect::Work { page: 1, most: OPERATORS_MAX }),
        );
    }

    #[test]
    fn a_page_of_some_work_is_drawn() {
        let invoice = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/documents/invoice.pdf");
        check_all(
            &[
                ("an invoice", std::fs::read(invoice).unwrap()),
                ("a map", pdf("0 0 m 1 1 l 2 2 3 3 4 4 c S ".repeat(100_000).as_bytes(), "", "", &[])),
                // hayro resolves no object within itself, and goes no deeper than so far.
                ("forms that call each other", {
                    let mut forms = forms(2, 3);
                    forms[1] = forms[1].iter().map(|byte| if *byte == b'7' { b'5' } else { *byte }).collect();
                    pdf(b"/N Do", "", "/XObject <</N 5 0 R>>", &forms)
                }),
                ("nested forms", pdf(b"/N Do", "", "/XObject <</N 5 0 R>>", &forms(1000, 1))),
            ],
            &Ok(()),
        );
    }
}
