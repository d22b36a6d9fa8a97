import './base.css';
import './saturation.css';
import './work.css';
import './batch.css';
import './vetting.css';
import './launches.css';
