import './base.css';
import './views/base.css';
import './saturation.css';
import './workloads.css';
import './batch.css';
import './views/vetting.css';
import './vetting.css';
import './views/launch.css';
