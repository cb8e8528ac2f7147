//! A terminal that is drawn on in place and given back as it was.

use std::io::{self, IsTerminal, Read, Write};

use rustix::termios::{self, LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use tokio::sync::mpsc;

use super::render::{Line, Room, Style};
use crate::cli::Output;

/// Another screen beside the one of the shell, no cursor, no wrapping.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The terminal while it is drawn on. Dropping it gives the terminal back.
pub struct Screen<'a> {
    out: &'a mut Output,
    keyboard: Option<Termios>,
}

impl<'a> Screen<'a> {
    /// Takes the terminal over. Keys are not shown and come one by one; Ctrl-C is still a signal.
    pub fn enter(out: &'a mut Output) -> io::Result<Self> {
        let keyboard = keyboard();
        // From here on dropping it gives everything back.
        let screen = Self { out, keyboard };
        screen.out.write_all(ENTER.as_bytes())?;
        screen.out.flush()?;
        Ok(screen)
    }

    /// Draws the lines over what was there before. In one piece, and without clearing first: that would flicker.
    pub fn draw(&mut self, lines: &[Line]) -> io::Result<()> {
        self.out.write_all(frame(lines).as_bytes())?;
        self.out.flush()
    }
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = self.out.write_all(LEAVE.as_bytes());
        let _ = self.out.flush();
        if let Some(modes) = &self.keyboard {
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, modes);
        }
    }
}

/// Turns the echo and the line buffer off, and gives back the modes that were on; `None` when nobody types.
fn keyboard() -> Option<Termios> {
    let before = termios::tcgetattr(io::stdin()).ok()?;
    let mut modes = before.clone();
    modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
    // Ctrl-Z would leave the shell on our screen.
    modes.special_codes[SpecialCodeIndex::VSUSP] = 0;
    termios::tcsetattr(io::stdin(), OptionalActions::Now, &modes).ok()?;
    Some(before)
}

fn frame(lines: &[Line]) -> String {
    // Home; each line clears what was behind it, the last what was below. Terminals that know 2026 show it at once.
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

/// The terminal's size; 80 by 24 when it does not say.
pub fn room() -> Room {
    let size = termios::tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    size.map_or(Room { width: 80, height: 24 }, |size| Room { width: size.ws_col.into(), height: size.ws_row.into() })
}

/// The keys that are typed; none when the input is no terminal.
pub fn keys() -> mpsc::UnboundedReceiver<u8> {
    let (sender, receiver) = mpsc::unbounded_channel();
    if io::stdin().is_terminal() {
        // It waits in a read that nothing ends but the process: a thread of its own, which nobody waits for.
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
    fn what_entering_turns_off_leaving_turns_on_again() {
        let mut switches: Vec<&str> = ENTER.split_inclusive(['h', 'l']).collect();
        switches.reverse();
        let back: String = switches
            .into_iter()
            .map(|switch| match switch.strip_suffix('h') {
                Some(mode) => format!("{mode}l"),
                None => format!("{}h", switch.trim_end_matches('l')),
            })
            .collect();
        assert_eq!(back, LEAVE);
    }
}
