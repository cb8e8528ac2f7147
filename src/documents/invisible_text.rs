//! The text layer of a page: words that are not drawn, each where it stands on the page.
//!
//! The font has one empty glyph, which stands for every character. A code says which character is meant only through
//! the table of the font (`ToUnicode`), so any script fits in one small font.

use std::collections::HashMap;
use std::fmt::Write as _;

use hayro::hayro_syntax::object::ObjRef;
use hayro::kurbo::{Affine, Point, Vec2};

use crate::order::{LayerPage, LayerWord};
use crate::pdf_writer::{PdfWriter, decimal};

/// The name of the font, by which tools recognize a text layer of OCR.
const FONT_NAME: &str = "GlyphLessFont";
/// The width of each character, in thousandths of the font size.
const ADVANCE: u16 = 500;
/// Units of the font for its size. Letters reach from the baseline to the full size.
const EM: u16 = 1000;
/// The part of a letter below the baseline, in these units. poppler takes 0 for unknown, and a third for it.
const DESCENT: i16 = -1;
/// The glyph of every character. 0 would stand for a missing one.
const EMPTY_GLYPH: u16 = 1;
/// The smallest height and width of a word in points.
const SIDE_MIN: f64 = 0.1;
/// The space between two words at least, as a share of their height: they may overlap.
const SPACE_MIN: f64 = 0.05;
/// The greatest coordinate in points. Readers limit them, and no page is as large.
const COORDINATE_MAX: f64 = 30_000.0;

/// The font of a text layer, with the characters that the layer has.
#[derive(Default)]
pub(crate) struct InvisibleFont {
    codes: HashMap<char, u16>,
    characters: Vec<char>,
}

impl InvisibleFont {
    /// The operators that write the words of a page. `to_points` maps its pixels to points, `font` is the name of the
    /// font among its resources.
    pub fn operators(&mut self, page: &LayerPage, to_points: Affine, font: &str) -> Vec<u8> {
        let mut text = String::from("q BT 3 Tr\n");
        for line in &page.lines {
            let words: Vec<_> = line.iter().filter_map(|word| PlacedWord::new(word, to_points)).collect();
            for (word, next) in words.iter().zip(words.iter().skip(1).map(Some).chain([None])) {
                self.write(word, next, font, &mut text);
            }
        }
        text.push_str("ET Q\n");
        text.into_bytes()
    }

    fn write(&mut self, word: &PlacedWord, next: Option<&PlacedWord>, font: &str, text: &mut String) {
        let codes: Vec<u16> = word.characters.iter().filter_map(|character| self.code(*character)).collect();
        let Some(space) = self.code(' ').filter(|_| !codes.is_empty()) else { return };
        let (height, along) = (word.height, word.direction);
        // The percentage by which characters of the usual width are stretched to this one.
        #[expect(clippy::cast_precision_loss, reason = "characters of a word")]
        let stretch = |width: f64, count: usize| {
            decimal(100.0 * width * f64::from(EM) / (count as f64 * f64::from(ADVANCE) * height), 0)
        };
        let [cosine, sine, down] = [along.x, along.y, -along.y].map(|value| decimal(value, 4));
        let [x, y, points] = [word.start.x, word.start.y, height].map(|value| decimal(value, 1));
        let stretched = stretch(word.width, codes.len());
        let _ = write!(text, "/{font} {points} Tf {stretched} Tz {cosine} {sine} {down} {cosine} {x} {y} Tm <");
        for code in codes {
            let _ = write!(text, "{code:04X}");
        }
        text.push_str("> Tj");
        // Behind the last word, too: lines of a table may be so near to each other that they would be one word.
        let gap = next.map_or(0.0, |next| (next.start - word.start).dot(along) - word.width);
        let _ = writeln!(text, " {} Tz <{space:04X}> Tj", stretch(gap.max(SPACE_MIN * height), 1));
    }

    /// The code of a character; `None` for one more than there are codes.
    fn code(&mut self, character: char) -> Option<u16> {
        if let Some(code) = self.codes.get(&character) {
            return Some(*code);
        }
        let code = u16::try_from(self.characters.len() + 1).ok()?;
        self.characters.push(character);
        self.codes.insert(character, code);
        Some(code)
    }

    /// Writes the font as the object `id`.
    pub fn write_to(&self, writer: &mut PdfWriter, id: ObjRef) {
        let [to_unicode, descendant, descriptor, program, glyphs] = [(); 5].map(|()| writer.reserve());
        let font = format!(
            "<</Type/Font/Subtype/Type0/BaseFont/{FONT_NAME}/Encoding/Identity-H/DescendantFonts[{descendant}]\
             /ToUnicode {to_unicode}>>"
        );
        writer.object(id, font.as_bytes());
        writer.compressed_stream(to_unicode, "", self.to_unicode().as_bytes());
        let font = format!(
            "<</Type/Font/Subtype/CIDFontType2/BaseFont/{FONT_NAME}/CIDSystemInfo<</Registry(Adobe)/Ordering(Identity)\
             /Supplement 0>>/FontDescriptor {descriptor}/DW {ADVANCE}/CIDToGIDMap {glyphs}>>"
        );
        writer.object(descendant, font.as_bytes());
        let metrics = format!(
            "<</Type/FontDescriptor/FontName/{FONT_NAME}/Flags 5/FontBBox[0 {DESCENT} {ADVANCE} {EM}]/ItalicAngle 0/Ascent {EM}\
             /Descent {DESCENT}/CapHeight {EM}/StemV 80/FontFile2 {program}>>"
        );
        writer.object(descriptor, metrics.as_bytes());
        let font = true_type();
        writer.compressed_stream(program, &format!("/Length1 {}", font.len()), &font);
        let glyph = EMPTY_GLYPH.to_be_bytes();
        writer.compressed_stream(glyphs, "", &glyph.repeat(self.characters.len() + 1));
    }

    /// The table from codes to characters (Adobe Technical Note 5411).
    fn to_unicode(&self) -> String {
        let mut table = String::from(
            "/CIDInit /ProcSet findresource begin\n12 dict begin\nbegincmap\n/CIDSystemInfo <</Registry (Adobe) \
             /Ordering (UCS) /Supplement 0>> def\n/CMapName /Adobe-Identity-UCS def\n/CMapType 2 def\n\
             1 begincodespacerange\n<0000> <FFFF>\nendcodespacerange\n",
        );
        let mut code = 0;
        // A section has at most 100 entries.
        for characters in self.characters.chunks(100) {
            let _ = writeln!(table, "{} beginbfchar", characters.len());
            for character in characters {
                code += 1;
                let _ = write!(table, "<{code:04X}> <");
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(table, "{unit:04X}");
                }
                table.push_str(">\n");
            }
            table.push_str("endbfchar\n");
        }
        table.push_str("endcmap\nCMapName currentdict /CMap defineresource pop\nend\nend\n");
        table
    }
}

/// A word on a page, in points.
struct PlacedWord {
    /// From left to right.
    characters: Vec<char>,
    /// Where the baseline begins.
    start: Point,
    /// The direction of the baseline, of length 1.
    direction: Vec2,
    width: f64,
    height: f64,
}

impl PlacedWord {
    /// `None` for a word without characters or without a place.
    fn new(word: &LayerWord, to_points: Affine) -> Option<Self> {
        let characters = visual_order(&word.text);
        let corners = word.corners.map(|[x, y]| to_points * Point::new(f64::from(x), f64::from(y)));
        let is_place = |corner: &Point| corner.x.abs() <= COORDINATE_MAX && corner.y.abs() <= COORDINATE_MAX;
        if characters.is_empty() || !corners.iter().all(is_place) {
            return None;
        }
        let [top_start, top_end, bottom_end, start] = corners;
        let along = bottom_end - start + (top_end - top_start);
        let direction = if along.hypot() > SIDE_MIN { along / along.hypot() } else { Vec2::new(1.0, 0.0) };
        let up = Vec2::new(-direction.y, direction.x);
        let height = (top_start - start).dot(up).midpoint((top_end - bottom_end).dot(up));
        Some(Self {
            characters,
            start,
            direction,
            width: (along.hypot() / 2.0).max(SIDE_MIN),
            height: height.max(SIDE_MIN),
        })
    }
}

/// The characters of a word from left to right. Tools that extract text expect them so, and turn right-to-left text
/// around; numbers and words of other scripts in it keep their direction.
fn visual_order(text: &str) -> Vec<char> {
    let visible = |character: &char| !character.is_control() && *character != '\u{feff}';
    let mut characters: Vec<char> = text.trim().chars().filter(visible).collect();
    if !characters.iter().any(|character| is_right_to_left(*character)) {
        return characters;
    }
    characters.reverse();
    let is_ltr = |character: char| character.is_alphanumeric() && !is_right_to_left(character);
    let mut at = 0;
    while let Some(start) = characters.iter().skip(at).position(|character| is_ltr(*character)).map(|found| at + found)
    {
        let rest = characters.get(start..).unwrap_or_default();
        // A separator is part of the number around it.
        let follows = |index: &usize| {
            let is_at = |index: usize| rest.get(index).is_some_and(|character| is_ltr(*character));
            let is_separator = rest.get(*index).is_some_and(|character| ".,:/-'٫٬".contains(*character));
            !(is_at(*index) || is_separator && is_at(*index + 1))
        };
        let length = (0..rest.len()).find(follows).unwrap_or(rest.len());
        if let Some(run) = characters.get_mut(start..start + length) {
            run.reverse();
        }
        at = start + length;
    }
    characters
}

/// True for the blocks of scripts that are written from right to left. Digits of them are written as others are.
fn is_right_to_left(character: char) -> bool {
    let in_block = matches!(character, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{feff}'
        | '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}');
    in_block && !matches!(character, '\u{660}'..='\u{669}' | '\u{6f0}'..='\u{6f9}' | '\u{66b}' | '\u{66c}')
}

/// A TrueType font of two empty glyphs with the tables that a PDF needs (ISO 32000-2, 9.9.1).
fn true_type() -> Vec<u8> {
    let words = |words: &[u16]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let glyphs = EMPTY_GLYPH + 1;
    // Version 1, revision 1, checksum, magic number, flags, units, two dates, bounds, style, smallest size, direction,
    // and two formats.
    let head = [1, 0, 1, 0, 0, 0, 0x5F0F, 0x3CF5, 0, EM, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ADVANCE, EM, 0, 8, 2, 0, 0];
    let hhea = [1, 0, EM, 0, 0, ADVANCE, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1];
    let maxp = [1, 0, glyphs, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    let tables: [(&[u8; 4], Vec<u8>); 6] = [
        (b"glyf", vec![0; 4]),
        (b"head", words(&head)),
        (b"hhea", words(&hhea)),
        (b"hmtx", words(&[ADVANCE, 0, 0])),
        (b"loca", words(&[0, 0, 0])),
        (b"maxp", words(&maxp)),
    ];
    let sum = |bytes: &[u8]| {
        let words = bytes.chunks(4).map(|chunk| {
            let mut word = [0; 4];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            u32::from_be_bytes(word)
        });
        words.fold(0, u32::wrapping_add)
    };
    // Version 1, the number of tables, and three numbers for a binary search among them.
    let mut font = words(&[1, 0, 6, 64, 2, 32]);
    let (mut bodies, mut head_at) = (Vec::new(), 0);
    for (tag, body) in tables {
        let offset = 12 + 16 * 6 + bodies.len();
        if tag == b"head" {
            head_at = offset;
        }
        font.extend(tag);
        let numbers = [sum(&body), u32::try_from(offset).unwrap_or(0), u32::try_from(body.len()).unwrap_or(0)];
        font.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
        bodies.extend(body);
        bodies.resize(bodies.len().next_multiple_of(4), 0);
    }
    font.extend(bodies);
    let adjustment = 0xB1B0_AFBA_u32.wrapping_sub(sum(&font)).to_be_bytes();
    font.iter_mut().skip(head_at + 8).zip(adjustment).for_each(|(to, from)| *to = from);
    font
}
