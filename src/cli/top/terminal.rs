//! Drawing on the terminal in place, and restoring it afterwards.

use std::io::{self, IsTerminal, Read, Write};

use rustix::termios::{self, LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use tokio::sync::mpsc;

use super::render::{Line, Style, TerminalSize};
use crate::cli::Output;

/// Switches to the alternate screen, hides the cursor, and turns line wrapping off.
const ENTER_SEQUENCE: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
/// Undoes [`ENTER_SEQUENCE`] in the reverse order.
const LEAVE_SEQUENCE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The alternate screen of the terminal. Dropping it restores the terminal.
pub struct Screen<'a> {
    out: &'a mut Output,
    /// The modes of the keyboard to restore.
    keyboard: Option<Termios>,
}

impl<'a> Screen<'a> {
    /// Switches to the alternate screen. Keys are read one by one and not shown; Ctrl-C is still a signal.
    pub fn enter(out: &'a mut Output) -> io::Result<Self> {
        let keyboard = set_keyboard_modes();
        // From here on, dropping the value restores everything.
        let screen = Self { out, keyboard };
        screen.out.write_all(ENTER_SEQUENCE.as_bytes())?;
        screen.out.flush()?;
        Ok(screen)
    }

    /// Draws the lines over the previous ones, in one write and without clearing first, which would flicker.
    pub fn draw(&mut self, lines: &[Line]) -> io::Result<()> {
        self.out.write_all(frame(lines).as_bytes())?;
        self.out.flush()
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        // A closed terminal does not need to be restored.
        let _ = self.out.write_all(LEAVE_SEQUENCE.as_bytes());
        let _ = self.out.flush();
        if let Some(modes) = &self.keyboard {
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, modes);
        }
    }
}

/// Turns the echo and the line buffer off, and returns the previous modes; `None` when the input is not a terminal.
fn set_keyboard_modes() -> Option<Termios> {
    let before = termios::tcgetattr(io::stdin()).ok()?;
    let mut modes = before.clone();
    modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
    // Ctrl-Z would suspend the process with the alternate screen on.
    modes.special_codes[SpecialCodeIndex::VSUSP] = 0;
    termios::tcsetattr(io::stdin(), OptionalActions::Now, &modes).ok()?;
    Some(before)
}

fn frame(lines: &[Line]) -> String {
    // Starts at home. Each line clears the rest of its row, and the last one the rows below. Terminals that support
    // mode 2026 show the frame at once.
    let mut frame = String::from("\x1b[?2026h\x1b[H");
    for (index, line) in lines.iter().enumerate() {
        let style = match line.style {
            Style::Plain => "",
            Style::Title => "\x1b[1m",
            Style::Heading => "\x1b[7m",
            Style::Alarm => "\x1b[31m",
        };
        let before = if index == 0 { "" } else { "\r\n" };
        let reset = if style.is_empty() { "" } else { "\x1b[0m" };
        frame.extend([before, style, &line.text, reset, "\x1b[K"]);
    }
    frame += "\x1b[J\x1b[?2026l";
    frame
}

/// The size of the terminal; 80 by 24 when it is unknown.
pub fn size() -> TerminalSize {
    let size = termios::tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    size.map_or(TerminalSize { width: 80, height: 24 }, |size| TerminalSize {
        width: size.ws_col.into(),
        height: size.ws_row.into(),
    })
}

/// The typed keys; none when the input is not a terminal.
pub fn keys() -> mpsc::UnboundedReceiver<u8> {
    let (sender, receiver) = mpsc::unbounded_channel();
    if io::stdin().is_terminal() {
        // On a detached thread, as only the end of the process interrupts its read.
        let _ = std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
            for key in io::stdin().lock().bytes().map_while(Result::ok) {
                if sender.send(key).is_err() {
                    break;
                }
            }
        });
    }
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_starts_at_home_and_clears_what_was_behind_each_line_and_below() {
        let line = |text: &str, style| Line { text: text.to_owned(), style };
        let frame = frame(&[line("ledge", Style::Title), line("a model", Style::Plain)]);
        let expected = "\x1b[?2026h\x1b[H\x1b[1mledge\x1b[0m\x1b[K\r\na model\x1b[K\x1b[J\x1b[?2026l";
        assert_eq!(frame, expected);
    }

    #[test]
    fn leaving_undoes_every_switch_of_entering() {
        let mut switches: Vec<&str> = ENTER_SEQUENCE.split_inclusive(['h', 'l']).collect();
        switches.reverse();
        let back: String = switches
            .into_iter()
            .map(|switch| match switch.strip_suffix('h') {
                Some(mode) => format!("{mode}l"),
                None => format!("{}h", switch.trim_end_matches('l')),
            })
            .collect();
        assert_eq!(back, LEAVE_SEQUENCE);
    }
}
