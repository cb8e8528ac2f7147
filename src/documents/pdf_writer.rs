//! Writes objects of a PDF file: a whole file, or an update behind one. A reader finds them by a cross-reference
//! section at the end (ISO 32000-2, 7.5.4 to 7.5.8).

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use hayro::hayro_syntax::object::{Dict, MaybeRef, ObjRef, Object};

/// The beginning of a file. The second line marks it as binary.
const HEADER: &[u8] = b"%PDF-1.7\n%\xE2\xE3\xCF\xD3\n";

/// The form of a cross-reference section. That of an update is the form of the section before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum XrefForm {
    Table,
    Stream,
}

/// A PDF file that is being written.
pub(crate) struct PdfWriter {
    file: Vec<u8>,
    /// Generation and offset of each object that was written.
    written: BTreeMap<u32, (i32, usize)>,
    next: u32,
    /// The new numbers of objects that are copied from another file. `None` in an update, where they keep their own.
    renumbered: Option<HashMap<ObjRef, ObjRef>>,
    /// Objects with new numbers that are not copied yet.
    waiting: Vec<ObjRef>,
}

impl PdfWriter {
    /// A new file. Objects of another file that are written to it get new numbers.
    pub fn new() -> Self {
        let renumbered = Some(HashMap::new());
        Self { file: HEADER.to_vec(), written: BTreeMap::new(), next: 1, renumbered, waiting: Vec::new() }
    }

    /// An update behind a file, whose bytes stay. New objects are numbered from `next` on.
    pub fn behind(file: &[u8], next: u32) -> Self {
        let mut file = file.to_vec();
        file.push(b'\n');
        Self { file, written: BTreeMap::new(), next, renumbered: None, waiting: Vec::new() }
    }

    /// The number of a new object.
    pub fn reserve(&mut self) -> ObjRef {
        let number = ObjRef::new(self.next, 0);
        self.next = self.next.saturating_add(1);
        number
    }

    /// The number here of an object of the other file.
    pub fn reference(&mut self, old: ObjRef) -> ObjRef {
        if let Some(new) = self.renumbered.as_ref().map_or(Some(&old), |known| known.get(&old)) {
            return *new;
        }
        let new = self.reserve();
        self.renumbered.get_or_insert_default().insert(old, new);
        self.waiting.push(old);
        new
    }

    /// An object of the other file that something refers to, and that is not copied yet.
    pub fn next_waiting(&mut self) -> Option<ObjRef> {
        self.waiting.pop()
    }

    pub fn object(&mut self, id: ObjRef, body: &[u8]) {
        self.written.insert(id.obj_number, (id.gen_number, self.file.len()));
        self.file.extend(format!("{} {} obj\n", id.obj_number, id.gen_number).bytes());
        self.file.extend(body);
        self.file.extend(b"\nendobj\n");
    }

    /// Writes a stream. `entries` are those of its dictionary besides its length.
    pub fn stream(&mut self, id: ObjRef, entries: &[u8], data: &[u8]) {
        let length = format!("/Length {}>>\nstream\n", data.len());
        self.object(id, &[b"<<", entries, length.as_bytes(), data, b"\nendstream"].concat());
    }

    /// Writes a stream, compressed.
    pub fn compressed_stream(&mut self, id: ObjRef, entries: &str, data: &[u8]) {
        self.stream(id, format!("{entries}/Filter/FlateDecode").as_bytes(), &compressed(data));
    }

    /// Copies an object of the other file.
    pub fn copy(&mut self, id: ObjRef, object: &Object<'_>) {
        let mut body = Vec::new();
        if let Object::Stream(stream) = object {
            self.write_entries(stream.dict(), &[b"Length"], &mut body);
            return self.stream(id, &body, &stream.raw_data());
        }
        self.write(object, &mut body);
        self.object(id, &body);
    }

    /// Writes the entries of a dictionary of the other file, but for those with these keys.
    pub fn write_entries(&mut self, dict: &Dict<'_>, without: &[&[u8]], out: &mut Vec<u8>) {
        for (key, value) in dict.entries().filter(|(key, _)| !without.contains(&&**key)) {
            write_name(&key, out);
            out.push(b' ');
            self.write_value(&value, out);
        }
    }

    /// Writes a value of the other file: a reference stays one.
    pub fn write_value(&mut self, value: &MaybeRef<Object<'_>>, out: &mut Vec<u8>) {
        match value {
            MaybeRef::Ref(old) => out.extend(self.reference(*old).to_string().bytes()),
            MaybeRef::NotRef(object) => self.write(object, out),
        }
    }

    fn write(&mut self, object: &Object<'_>, out: &mut Vec<u8>) {
        match object {
            Object::Boolean(value) => out.extend(value.to_string().bytes()),
            Object::Number(number) => {
                let text = number.to_string();
                // A number in a PDF has no exponent.
                let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"-.".contains(&byte));
                out.extend(if is_plain { text } else { decimal(number.as_f64(), 9) }.bytes());
            }
            Object::String(text) => write_string(text, out),
            Object::Name(name) => write_name(name, out),
            Object::Dict(dict) => {
                out.extend(b"<<");
                self.write_entries(dict, &[], out);
                out.extend(b">>");
            }
            Object::Array(array) => {
                out.push(b'[');
                for item in array.raw_iter() {
                    self.write_value(&item, out);
                    out.push(b' ');
                }
                out.push(b']');
            }
            // A stream is never part of another object.
            Object::Null(_) | Object::Stream(_) => out.extend(b"null"),
        }
    }

    /// Ends the file with a cross-reference section. `trailer` has further entries of the trailer.
    pub fn finish(mut self, form: XrefForm, trailer: &[u8]) -> Vec<u8> {
        let own = (form == XrefForm::Stream).then(|| self.reserve());
        let start = self.file.len();
        // A whole file has the free object 0, which begins the list of free objects.
        let head = self.renumbered.as_ref().map(|_| (0, None));
        let objects = self.written.iter().map(|(number, place)| (*number, Some(*place)));
        let own_place = own.map(|id| (id.obj_number, Some((0, start))));
        let objects: Vec<_> = head.into_iter().chain(objects).chain(own_place).collect();
        let runs = objects.chunk_by(|(before, _), (after, _)| before + 1 == *after);
        let runs = runs.map(|run| (run.first().map_or(0, |(number, _)| *number), run));

        let size = format!("/Size {}", self.next).into_bytes();
        match own {
            None => {
                self.file.extend(b"xref\n");
                for (first, run) in runs {
                    self.file.extend(format!("{first} {}\n", run.len()).bytes());
                    for (_, place) in run {
                        let entry = match place {
                            Some((generation, offset)) => format!("{offset:010} {generation:05} n \n"),
                            None => "0000000000 65535 f \n".to_owned(),
                        };
                        self.file.extend(entry.bytes());
                    }
                }
                self.file.extend([b"trailer\n<<", trailer, &size, b">>"].concat());
            }
            Some(id) => {
                let (mut index, mut rows) = (String::new(), Vec::new());
                for (first, run) in runs {
                    let _ = write!(index, "{first} {} ", run.len());
                    for (_, place) in run {
                        let (generation, offset) = place.unwrap_or((0, 0));
                        rows.push(u8::from(place.is_some()));
                        rows.extend(u32::try_from(offset).unwrap_or(u32::MAX).to_be_bytes());
                        rows.extend(u16::try_from(generation).unwrap_or(u16::MAX).to_be_bytes());
                    }
                }
                let layout = format!("/Type/XRef/W[1 4 2]/Index[{index}]/Filter/FlateDecode");
                self.stream(id, &[layout.as_bytes(), trailer, &size].concat(), &compressed(&rows));
            }
        }
        self.file.extend(format!("\nstartxref\n{start}\n%%EOF\n").bytes());
        self.file
    }
}

/// A number with up to this many decimal places.
pub(crate) fn decimal(value: f64, places: usize) -> String {
    let value = if value.is_finite() { value } else { 0.0 };
    let text = format!("{value:.places$}");
    let text = if places > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

fn compressed(data: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing to memory does not fail.
    let _ = encoder.write_all(data);
    encoder.finish().unwrap_or_default()
}

fn write_name(name: &[u8], out: &mut Vec<u8>) {
    out.push(b'/');
    for byte in name {
        if byte.is_ascii_alphanumeric() || b"-_.+*,:;@!$&'=^`|~\"?".contains(byte) {
            out.push(*byte);
        } else {
            out.extend(format!("#{byte:02X}").bytes());
        }
    }
}

fn write_string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'<');
    out.extend(text.iter().flat_map(|byte| format!("{byte:02X}").into_bytes()));
    out.push(b'>');
}
