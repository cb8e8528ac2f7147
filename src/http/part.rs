//! The section `[http]` as the daemon and `ledge doctor` see it.

use std::path::Path;

use ledge_base::toml_check::ValueProblem;
use ledge_listener::address;
use ledge_part::check::Finding;
use ledge_part::section::{ConfigSection, DoctorContext};

use crate::config::HttpConfig;
use crate::{doctor, local_plain};

impl ConfigSection for HttpConfig {
    fn resolve(&mut self, root: &Path) {
        address::resolve_sockets(&mut self.listen, root);
        self.tls.resolve(root);
    }

    fn problems(&self) -> Vec<ValueProblem> {
        let mut problems = Vec::new();
        if self.listen.is_empty() {
            problems.push(ValueProblem::new("listen", "is empty: add at least one address"));
        }
        problems.extend(address::problems(&self.listen));
        if self.max_memory_bytes < self.max_body_bytes {
            let reason = format!(
                "is smaller than http.max_body_bytes ({}), so the largest body would always be refused: set it to a \
                 multiple of http.max_body_bytes",
                self.max_body_bytes
            );
            problems.push(ValueProblem::new("max_memory_bytes", reason));
        }
        problems.extend(local_plain::problems(&self.local_plain, &self.listen));
        if self.serves_tls() {
            problems.extend(self.tls.missing_certificate("http.listen"));
        }
        problems.extend(self.tls.problems());
        problems
    }

    fn doctor(&self, context: &DoctorContext<'_>) -> Vec<Finding> {
        let https = doctor::https(self, context).into_iter();
        https.chain(doctor::local_access(self)).chain(local_plain::findings(&self.local_plain)).collect()
    }
}
