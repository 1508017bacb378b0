// theme.js -- the colours chosen here, set before the first paint; "auto" (the default) is the
// system's choice.
(function () {
    'use strict';
    try {
        const chosen = localStorage.getItem('pith.theme');
        if (chosen === 'dark' || chosen === 'light')
            document.documentElement.dataset.theme = chosen;
    } catch (e) {
        // A browser that keeps nothing has the system's colours.
    }
})();
