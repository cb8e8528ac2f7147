//! Reads a page: finds lines of text in its picture, cuts them out, reads them, and puts them in order. The models run
//! elsewhere: here their input tensors are made, and their outputs interpreted.
//!
//! Files, in the order of a page:
//! * `geometry.rs` - points, quadrilaterals and upright rectangles of a page, in its pixels
//! * `page_turn.rs` - the quarter turns that put a page upright
//! * `detection.rs`, `components.rs`, `rectangle.rs` - find: a map of probabilities into quadrilaterals around lines
//! * `detection_view.rs`, `faint_print.rs` - find again: the view of a page that shows small or faint lines better
//! * `line_image.rs` - cut: the picture of a line, level and of the height that the models take
//! * `line_turn.rs` - turn: the lines that stand upside down
//! * `recognition.rs`, `ctc.rs` - read: batches of lines of like width, and their characters
//! * `line.rs` - a line that was read, with the places of its characters
//! * `order.rs` - the order of reading: rows, columns, and the page as plain text
//! * `fields.rs`, `fields/` - amounts, dates and numbers of a page by the words next to or above them
//!
//! Invariants:
//! * Coordinates that leave this folder are in pixels of the page that came in, and finite.
//! * The number of lines, their width and the work for them are bounded, whatever the model returns.
//! * A NaN in an output of a model counts as the least likely value.

mod components;
pub mod ctc;
pub mod detection;
pub mod detection_view;
pub mod faint_print;
pub mod fields;
pub mod geometry;
pub mod line;
pub mod line_image;
pub mod line_turn;
pub mod order;
pub mod page_turn;
pub mod recognition;
mod rectangle;
