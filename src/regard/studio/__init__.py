"""The studio: its routes, what they ask the scheduler, and `app/`, all JavaScript, HTML and CSS of Regard."""
