//! What Ledge tells about itself: the log, and the facts of the machine it runs on.

mod journal;
pub mod logging;
pub mod machine;
pub mod messages;
pub mod process;
pub mod system;
