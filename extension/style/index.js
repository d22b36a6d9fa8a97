import './base.css';
import './views/base.css';
import './saturation.css';
import './work.css';
import './batch.css';
import './views/vetting.css';
import './vetting.css';
import './launches.css';
